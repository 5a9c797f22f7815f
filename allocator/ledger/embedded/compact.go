package embedded

import pb "go.etcd.io/etcd/api/v3/etcdserverpb"

func compaction(revision int64) *pb.CompactionRequest {
	return &pb.CompactionRequest{Revision: revision, Physical: true}
}
