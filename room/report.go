package room

import (
	"slices"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
)

// reportPage is how many marks one message of ReportMarks has.
const reportPage = 1000

// ReportMarks implements RoomService.
func (o *operators) ReportMarks(r *marchv1.ReportMarksRequest,
	stream grpc.ServerStreamingServer[marchv1.ReportMarksResponse]) error {
	uuid, err := o.ledger.UUID(stream.Context())
	if err != nil {
		return err
	}
	if !strings.EqualFold(r.GetClusterUuid(), uuid) {
		return allocator.Errorf(allocator.Refused,
			"cluster_uuid: %q; this is an instance of cluster %s", r.GetClusterUuid(), uuid)
	}
	q := record.Question{After: r.GetAfterSequence()}
	if b := r.GetBarrier(); b != nil {
		q.Barrier = &record.Barrier{Nonce: b.GetHaltNonce(), ClusterID: b.GetEtcdClusterId()}
	}
	m := o.instance.Memory(stream.Context(), q)
	part := memoryToProto(m)
	for page := range slices.Chunk(m.Marks, reportPage) {
		for _, mark := range page {
			part.Marks = append(part.Marks, &marchv1.RememberedMark{Tag: string(mark.Tag), Next: mark.Next,
				MarginTotal: mark.Total})
		}
		if err := stream.Send(part); err != nil {
			return err
		}
		part = &marchv1.ReportMarksResponse{}
	}
	if len(m.Marks) > 0 {
		return nil
	}
	return stream.Send(part)
}

// memoryToProto returns a memory without its marks as a message.
func memoryToProto(m record.Memory) *marchv1.ReportMarksResponse {
	p := &marchv1.ReportMarksResponse{
		ClusterUuid: m.UUID, Room: string(m.Room), Instance: string(m.Name), Incarnations: m.Incarnations,
		Epochs: m.Epochs, LayoutVersion: m.Version, LatestEpoch: m.Latest,
		NarrowestRange: m.NarrowestRange, LargestBoundary: m.LargestBoundary,
		Formats:     int32(m.Formats),
		MarginTotal: m.MarginTotal, SeenUnder: m.SeenUnder,
		Barred: m.Barred, UnbarredReason: m.Unbarred, Sequence: m.Sequence,
	}
	p.Workers, p.NotBeforeMs = workersToProto(m.Workers), m.NotBefore
	if m.Layout.Version != 0 {
		p.Layout = api.LayoutToProto(m.Layout)
	}
	for _, room := range m.Rooms {
		p.Rooms = append(p.Rooms, string(room))
	}
	for _, seen := range m.Seen {
		p.Seen = append(p.Seen, &marchv1.SeenInstance{
			Room: string(seen.Room), Name: string(seen.Name), Incarnation: seen.Incarnation,
			Address: seen.Address, LeftRevision: seen.Left,
		})
	}
	return p
}

// workersToProto returns workers as messages.
func workersToProto(leases []record.Lease) (all []*marchv1.RememberedWorker) {
	for _, l := range leases {
		all = append(all, &marchv1.RememberedWorker{
			Bits: int32(l.Bits), Number: l.Number, Room: string(l.Room), Instance: string(l.Instance),
			Incarnation: l.Incarnation,
			FromMs:      l.From, UntilMs: l.Until, Epoch: l.Stamp.Epoch,
			LayoutRevision: l.Stamp.Revision, ClockMs: l.Clock,
			Caller: l.Caller, GoesOn: l.Goes,
		})
	}
	return all
}

// barred returns the recover that has barred this instance, or nil.
func (o *operators) barred() *marchv1.Barred {
	if b, is := o.instance.Barred(); is {
		return &marchv1.Barred{By: b.By, Since: timestamppb.New(b.Since)}
	}
	return nil
}

// orphaned logs and counts a tag of which this instance held IDs that other
// instances may also have issued, because a recover went on without this instance.
func (s *Server) orphaned(o ledger.Orphan) {
	if s.metrics != nil {
		s.metrics.orphans.Inc()
	}
	s.log.Error("IDs may have been issued twice: a recover went on without this instance", "tag", o.Tag,
		"from", o.Began, "below", o.Below)
}

// drop drops all segments and workers of this instance. New chains and workers then serve
// callers.
func (s *Server) drop(why string) {
	s.tags.dropIDs()
	s.log.Warn("all IDs that this instance held are dropped", "why", why)
}
