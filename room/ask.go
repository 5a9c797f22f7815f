package room

import (
	"context"
	"errors"
	"io"

	"google.golang.org/grpc"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
)

// AskMarks asks an instance for its memory of its leases. It calls use with each
// part of the marks, and returns the rest. Its errors are the instance's, use's, and
// Invalid if the answer is not valid.
func AskMarks(ctx context.Context, conn grpc.ClientConnInterface, q record.Question,
	use record.UseMarks) (m record.Memory, err error) {
	r := &marchv1.ReportMarksRequest{ClusterUuid: q.UUID, AfterSequence: q.After}
	if q.Barrier != nil {
		r.Barrier = &marchv1.Barrier{HaltNonce: q.Barrier.Nonce, EtcdClusterId: q.Barrier.ClusterID}
	}
	ctx, cancel := context.WithCancel(ctx) // ends the stream if this function returns early
	defer cancel()
	stream, err := marchv1.NewRoomServiceClient(conn).ReportMarks(ctx, r)
	for first := true; err == nil; first = false {
		var part *marchv1.ReportMarksResponse
		if part, err = stream.Recv(); err != nil {
			break
		}
		if first {
			if m, err = MemoryFromProto(part); err != nil {
				break
			}
		}
		var marks []record.RememberedMark
		if marks, err = marksFromProto(part.GetMarks()); err == nil {
			err = use(m.Room, marks)
		}
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	if err == nil && m.UUID == "" {
		err = allocator.Errorf(allocator.Invalid, "the instance's answer is empty; it must have at least one part")
	}
	return m, err
}

// MemoryFromProto checks the first part of an instance's memory, and returns it
// without the marks. Its error is Invalid.
func MemoryFromProto(p *marchv1.ReportMarksResponse) (record.Memory, error) {
	m := record.Memory{
		UUID: p.GetClusterUuid(), Room: allocator.Room(p.GetRoom()), Name: allocator.Instance(p.GetInstance()),
		Incarnations: p.GetIncarnations(), Epochs: p.GetEpochs(), Version: p.GetLayoutVersion(),
		Latest:         p.GetLatestEpoch(),
		NarrowestRange: p.GetNarrowestRange(), LargestBoundary: p.GetLargestBoundary(), MarginTotal: p.GetMarginTotal(),
		SeenUnder: p.GetSeenUnder(), Barred: p.GetBarred(), Unbarred: p.GetUnbarredReason(), Sequence: p.GetSequence(),
	}
	if p.GetLayout() != nil {
		var err error
		if m.Layout, err = api.LayoutFromProto(p.GetLayout()); err != nil {
			return m, err
		}
	}
	for _, name := range p.GetRooms() {
		m.Rooms = append(m.Rooms, allocator.Room(name))
	}
	for _, s := range p.GetSeen() {
		m.Seen = append(m.Seen, record.SeenInstance{
			Room: allocator.Room(s.GetRoom()), Name: allocator.Instance(s.GetName()), Incarnation: s.GetIncarnation(),
			Address: s.GetAddress(), Left: s.GetLeftRevision(),
		})
	}
	m.Workers, m.NotBefore, m.Formats = workersFromProto(p.GetWorkers()), p.GetNotBeforeMs(), int(p.GetFormats())
	if len(m.Incarnations) == 0 {
		return m, allocator.Errorf(allocator.Invalid, "incarnations: none; allowed: 1 or more")
	}
	return m, m.Validate()
}

// workersFromProto returns workers as they were sent. Memory.Validate checks them.
func workersFromProto(p []*marchv1.RememberedWorker) (leases []record.Lease) {
	for _, w := range p {
		leases = append(leases, record.Lease{
			WorkerID: record.WorkerID{Bits: int(w.GetBits()), Number: w.GetNumber()},
			Worker: record.Worker{
				Room: allocator.Room(w.GetRoom()), Instance: allocator.Instance(w.GetInstance()),
				Incarnation: w.GetIncarnation(),
				From:        w.GetFromMs(), Until: w.GetUntilMs(), Clock: w.GetClockMs(), Caller: w.GetCaller(),
				Stamp: record.Stamp{Epoch: w.GetEpoch(), Revision: w.GetLayoutRevision()},
			},
			Goes: w.GetGoesOn(),
		})
	}
	return leases
}

// marksFromProto checks a part of an instance's marks. Its error is Invalid.
func marksFromProto(p []*marchv1.RememberedMark) ([]record.RememberedMark, error) {
	marks := make([]record.RememberedMark, 0, len(p))
	for _, mark := range p {
		marks = append(marks, record.RememberedMark{Tag: allocator.Tag(mark.GetTag()), Next: mark.GetNext(),
			Total: mark.GetMarginTotal()})
	}
	return marks, record.ValidateMarks(marks)
}
