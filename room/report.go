package room

import (
	"maps"
	"slices"
	"strings"

	"google.golang.org/grpc"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	marchv1 "github.com/march-id/march/api/march/v1"
)

// reportPage is how many marks one message of ReportMarks has.
const reportPage = 1000

// ReportMarks implements RoomService.
func (s *Server) ReportMarks(r *marchv1.ReportMarksRequest, stream grpc.ServerStreamingServer[marchv1.ReportMarksResponse]) error {
	uuid, err := s.ledger.UUID(stream.Context())
	if err != nil {
		return err
	}
	if !strings.EqualFold(r.GetClusterUuid(), uuid) {
		return allocator.Errorf(allocator.Refused, "cluster_uuid: %q; this is an instance of cluster %s", r.GetClusterUuid(), uuid)
	}
	if r.GetVouch() && r.GetBar() {
		return allocator.Errorf(allocator.Invalid, "vouch and bar: both are set; allowed: one of them")
	}
	var m ledger.Memory
	if r.GetVouch() {
		m, err = s.instance.Vouch(stream.Context())
	} else {
		m, err = s.instance.Report(r.GetBar())
	}
	if err != nil {
		return err
	}
	part := &marchv1.ReportMarksResponse{
		ClusterUuid: m.UUID, Room: string(m.Room), Instance: string(m.Name), Incarnations: m.Incarnations,
		Epochs: m.Epochs, LayoutVersion: m.Version, Revision: m.Revision,
	}
	for _, room := range m.Rooms {
		part.Rooms = append(part.Rooms, string(room))
	}
	for _, seen := range m.Seen {
		part.Seen = append(part.Seen, &marchv1.SeenInstance{
			Room: string(seen.Room), Name: string(seen.Name), Incarnation: seen.Incarnation, Address: seen.Address,
		})
	}
	for _, tag := range slices.Sorted(maps.Keys(m.Marks)) {
		if part.Marks = append(part.Marks, &marchv1.RememberedMark{Tag: string(tag), Next: m.Marks[tag]}); len(part.Marks) == reportPage {
			if err := stream.Send(part); err != nil {
				return err
			}
			part = &marchv1.ReportMarksResponse{}
		}
	}
	return stream.Send(part)
}

// leftBehind is told of a tag of which this instance held IDs that others may
// have leased too, since a recover did not know of them.
func (s *Server) leftBehind(tag allocator.Tag, next int64) {
	if s.metrics != nil {
		s.metrics.behind.Inc()
	}
	s.log.Error("IDs may have been issued twice: `march recover` did not know of what this instance held; it is dropped", "tag", tag, "held_below", next)
	if chain := s.chains.get(string(tag)); chain != nil {
		s.chains.remove(tag, chain)
	}
}
