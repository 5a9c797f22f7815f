package room

import (
	"context"
	"errors"
	"io"
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
