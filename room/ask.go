package room

import (
	"context"
	"errors"
	"io"
	"time"

	"google.golang.org/grpc"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/observe"
)

// AskMarks asks an instance what it remembers of its leases. Its errors are the
// instance's, and Invalid where what it says cannot be.
func AskMarks(ctx context.Context, conn grpc.ClientConnInterface, r *marchv1.ReportMarksRequest) (ledger.Memory, error) {
	m := ledger.Memory{Marks: make(map[allocator.Tag]int64)}
	stream, err := marchv1.NewRoomServiceClient(conn).ReportMarks(ctx, r)
	for first := true; err == nil; first = false {
		var part *marchv1.ReportMarksResponse
		if part, err = stream.Recv(); err == nil {
			takeReport(&m, part, first)
		}
	}
	if errors.Is(err, io.EOF) {
		err = m.Validate()
	}
	return m, err
}

// takeReport adds a part of an instance's memory to m.
func takeReport(m *ledger.Memory, part *marchv1.ReportMarksResponse, first bool) {
	if first {
		m.UUID, m.Room, m.Name = part.GetClusterUuid(), allocator.Room(part.GetRoom()), allocator.Instance(part.GetInstance())
		m.Incarnations, m.Epochs, m.Version = part.GetIncarnations(), part.GetEpochs(), part.GetLayoutVersion()
		m.Revision = part.GetRevision()
		for _, name := range part.GetRooms() {
			m.Rooms = append(m.Rooms, allocator.Room(name))
		}
		for _, s := range part.GetSeen() {
			m.Seen = append(m.Seen, ledger.SeenInstance{
				Room: allocator.Room(s.GetRoom()), Name: allocator.Instance(s.GetName()), Incarnation: s.GetIncarnation(), Address: s.GetAddress(),
			})
		}
	}
	for _, mark := range part.GetMarks() {
		m.Marks[allocator.Tag(mark.GetTag())] = mark.GetNext()
	}
}

// askToVouch asks another instance to vouch for this one's marks, where it is
// without its journal.
func (s *Server) askToVouch(ctx context.Context, peer ledger.SeenInstance) (ledger.Memory, error) {
	uuid, err := s.ledger.UUID(ctx)
	if err != nil {
		return ledger.Memory{}, err
	}
	conn, err := api.Dial(peer.Address, append(observe.CallsOut(s.cfg.Tracer), grpc.WithIdleTimeout(time.Minute))...)
	if err != nil {
		return ledger.Memory{}, err
	}
	defer func() { _ = conn.Close() }()
	return AskMarks(ctx, conn, &marchv1.ReportMarksRequest{ClusterUuid: uuid, Vouch: true})
}
