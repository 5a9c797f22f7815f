package sim_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/gomodule/redigo/redis"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/format"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/timeid"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/testcluster"
)

// feature is a row of the table: a tag, and how its callers call.
type feature struct {
	name string
	tag  allocator.Tag
	set  func(s *record.TagSettings)
	// call takes IDs and checks what belongs to them. Nil calls Next.
	call func(ctx context.Context, m *moves, p *process, a *answered) error
	// at names the only instance that is called; empty for all.
	at allocator.Instance

	during func(m *moves) // what an operator does as the move begins
	after  func(m *moves) // checks once the move is over

	bars  string         // of the error by which the feature refuses a move
	unbar func(m *moves) // what the operator does then
}

const (
	opaqueKey = "orders-1"
	quota     = 40 // IDs per second of all callers, who ask for more
	each      = 10 // of them by each call
)

func features() []feature {
	skip := int64(0)
	return []feature{
		{name: "counter", tag: "order"},
		{name: "strict retract", tag: strictTag, set: func(s *record.TagSettings) { s.StrictRetract = true }},
		{name: "ordered by room", tag: orderedTag, set: func(s *record.TagSettings) {
			s.StrictOrder, s.TenureHold = record.OrderRoom, "3s"
		}, bars: "strict_order: not before the formats"},
		{name: "ordered by cluster", tag: clusterTag, set: func(s *record.TagSettings) {
			s.StrictOrder, s.TenureHold, s.Home = record.OrderCluster, "3s", "b"
		}, bars: "is the home of|strict_order: not before the formats", unbar: func(m *moves) {
			m.update(clusterTag, func(s *record.TagSettings) { s.Home = "a" })
		}},
		{name: "skew", tag: "skewed", set: func(s *record.TagSettings) { s.MaxSkew = 500 }},
		{name: "prescale", tag: "scaled", set: func(s *record.TagSettings) { s.MinStep = 10 },
			during: func(m *moves) {
				_, err := m.console().PrescaleTag(m.ctx, &marchv1.PrescaleTagRequest{Name: "scaled", Step: 4000,
					Duration: durationpb.New(time.Hour)})
				m.must(err)
			},
			after: func(m *moves) {
				for _, p := range m.issuing() {
					if chain, err := m.chain(m.ctx, p.address, "scaled"); err != nil || chain.GetHeld() < 3000 {
						m.problem("scaled", "%s holds %v, %v; want 4,000 IDs or nearly", p.id, chain, err)
					}
				}
			}},
		{name: "skip", tag: "skipped", during: func(m *moves) {
			for _, mark := range m.marks("skipped") {
				skip = max(skip, mark.Next)
			}
			skip += 100_000
			_, err := m.console().SkipTag(m.ctx, &marchv1.SkipTagRequest{Name: "skipped", To: skip, Force: true})
			m.must(err)
		}, after: func(m *moves) {
			for _, a := range m.answeredSince("skipped", m.over) {
				if a.runs[0].First < skip {
					m.problem("skipped", "%s issued %v after a skip to %d", a.by.id, a.runs, skip)
				}
			}
		}},
		{name: "limit", tag: "limited", set: func(s *record.TagSettings) { s.MinStep, s.MaxStep = 2000, 4000 },
			after: (*moves).useUp},
		{name: "period", tag: yearly, set: func(s *record.TagSettings) { *s = (&world{}).yearly(*s) },
			call: func(ctx context.Context, _ *moves, p *process, a *answered) error {
				r, err := p.room.Next(ctx, &marchv1.NextRequest{Tag: string(a.tag)})
				if err == nil && r.GetId()/100_000_000_000_000 != 2026 {
					return allocator.Errorf(allocator.Internal, "ID %d is not of 2026", r.GetId())
				}
				return a.one(r.GetId(), err)
			}},
		{name: "format", tag: "written", set: written("prefix(ORD-) | decimal(13) | luhn"), call: texted(`^ORD-\d{14}$`)},
		{name: "opaque", tag: "opaque", set: func(s *record.TagSettings) {
			written(fmt.Sprintf("prefix(A) | opaque(%s, 10^12) | decimal(12)", opaqueKey))(s)
			s.KeyCheck = secret().CheckValue()
		}, call: texted(`^A\d{12}$`)},
		{name: "time tag, middle", tag: "middle", set: timedBy(timeid.WorkerMiddle), call: ticked},
		{name: "time tag, last", tag: "last", set: timedBy(timeid.WorkerLast), call: ticked,
			bars: "has the worker last", unbar: func(m *moves) {
				m.sleep(nil, 2*time.Second, 0) // callers are answered until the tag is deleted
				m.ends("last")
				m.must(m.admin.DeleteTag(m.ctx, "last", "simulation"))
			}},
		{name: "pinned worker", tag: "pinned", set: timedBy(timeid.WorkerMiddle), call: ticked, at: "b1",
			bars: "has pinned worker", unbar: func(m *moves) {
				m.unpinned.Store(true)
				for _, name := range []string{"b1", "b2"} {
					if m.slotOf(name).running() != nil {
						m.replace(m.slotOf(name))
						continue
					}
					_, err := m.console().ForgetInstance(m.ctx, &marchv1.ForgetInstanceRequest{Room: "b", Name: name})
					m.must(err)
				}
			}},
		{name: "door of Redis", tag: "redis", call: func(ctx context.Context, m *moves, p *process, a *answered) error {
			return a.one(m.redis(ctx, p, "INCR", "redis"))
		}},
		{name: "door of Leaf", tag: "leaf", call: web("leaf", "/api/segment/get/leaf")},
		{name: "door of TinyId", tag: "tinyid",
			call: web("tinyid", "/tinyid/id/nextIdSimple?bizType=tinyid&token=secret")},
		{name: "door of CosId", tag: "cosid", call: web("cosid", "/ids/cosid")},
		{name: "quota", tag: "bounds", call: func(ctx context.Context, m *moves, p *process, a *answered) error {
			last, err := m.redis(ctx, p, "INCRBY", "bounds", each)
			if err != nil && strings.Contains(err.Error(), "quota tag_ids_per_second") {
				m.overQuota.Add(1)
				return errOverQuota
			}
			a.runs = []allocator.Run{{First: last - each + 1, Count: each}}
			return err
		}, after: func(m *moves) {
			taken := int64(0)
			for _, a := range m.answeredSince("bounds", m.world.began) {
				taken += a.runs[0].Count
			}
			most := quota * int64(time.Since(m.world.began)/time.Second+2)
			if taken > most || m.overQuota.Load() == 0 {
				m.problem("bounds", "%d IDs taken, %d calls refused; the quota allows %d IDs", taken,
					m.overQuota.Load(), most)
			}
		}},
		{name: "client's lease", tag: "leased", call: func(ctx context.Context, _ *moves, p *process,
			a *answered) error {
			r, err := p.room.Lease(ctx, &marchv1.LeaseRequest{Tag: string(a.tag), Count: 4})
			if err == nil {
				a.lease(r)
			}
			return err
		}},
	}
}

// errOverQuota is the end of a call that a quota refused, as it must: callers see nothing of a move in it.
var errOverQuota = allocator.Errorf(allocator.TooMany, "over the quota")

// one is the answer with one ID.
func (a *answered) one(id int64, err error) error {
	a.runs = []allocator.Run{{First: id, Count: 1}}
	return err
}

// written gives a tag a format.
func written(description string) func(*record.TagSettings) {
	return func(s *record.TagSettings) {
		f, err := format.Parse(description)
		if err != nil {
			panic(err)
		}
		s.Format, s.Limit = description, record.FormatLimit(f)
	}
}

func secret() format.Key {
	key, err := format.NewKey(opaqueKey, make([]byte, format.KeySize))
	if err != nil {
		panic(err)
	}
	return key
}

// texted takes an ID whose text is like a pattern, and which the instance reads back.
func texted(like string) func(context.Context, *moves, *process, *answered) error {
	pattern := regexp.MustCompile(like)
	return func(ctx context.Context, _ *moves, p *process, a *answered) error {
		r, err := p.room.Next(ctx, &marchv1.NextRequest{Tag: string(a.tag)})
		if err != nil {
			return err
		}
		read, err := p.room.ParseText(ctx, &marchv1.ParseTextRequest{Tag: string(a.tag), Text: r.GetText()})
		if err != nil || read.GetId() != r.GetId() || !pattern.MatchString(r.GetText()) {
			return allocator.Errorf(allocator.Internal, "ID %d has the text %q, which is read as %v, %v", r.GetId(),
				r.GetText(), read, err)
		}
		return a.one(r.GetId(), nil)
	}
}

// timedBy makes a tag one of time-ordered IDs.
func timedBy(order timeid.Order) func(*record.TagSettings) {
	return func(s *record.TagSettings) {
		t := record.NewTimeTag(timeid.Layout{TimeBits: 40, WorkerBits: 10, SequenceBits: 12, Unit: time.Millisecond,
			Epoch: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).UnixMilli(), Order: order})
		*s = record.DefaultTag()
		s.Time = &t
	}
}

// ticked takes a time-ordered ID.
func ticked(ctx context.Context, m *moves, p *process, a *answered) error {
	r, err := p.room.Next(ctx, &marchv1.NextRequest{Tag: string(a.tag)})
	if err != nil {
		return err
	}
	a.at = time.Now()
	_ = a.one(r.GetId(), nil)
	tag := timeTag{a.tag, *m.settings[a.tag].Time}
	m.noteTimed(p, tag, a.runs, m.reported(*a))
	layout, err := m.admin.Ledger.Refresh(ctx)
	parts, bad := tag.settings.Layout().Decompose(r.GetId())
	slice, _ := timeid.SliceOf(layout.Layout, p.in, tag.settings.WorkerBits)
	if number := parts.Worker - slice.Lower; a.tag == "pinned" && !m.unpinned.Load() &&
		errors.Join(err, bad) == nil && number != pin {
		return allocator.Errorf(allocator.Internal, "ID %d has worker %d of its room's slice; pinned is %d", r.GetId(),
			number, pin)
	}
	return nil
}

// pin is the number of the worker of b1; b2 has the next one. Without a pin it could take that of b1.
const pin = 7

// redis sends a command to a door, and returns the ID that it answers.
func (m *moves) redis(ctx context.Context, p *process, command string, args ...any) (int64, error) {
	conn, err := redis.DialContext(ctx, "tcp", p.doors.Redis.Addr().String(), redis.DialContextFunc(
		func(ctx context.Context, _, address string) (net.Conn, error) {
			return testcluster.DialContext(ctx, address)
		}))
	if err != nil {
		return 0, allocator.Errorf(allocator.Unavailable, "%w", err)
	}
	defer func() { _ = conn.Close() }()
	id, err := redis.Int64(redis.DoContext(conn, ctx, command, args...))
	if err != nil {
		err = allocator.Errorf(allocator.Unavailable, "%w", err)
	}
	return id, err
}

// web takes an ID at a door that speaks HTTP.
func web(name, path string) func(context.Context, *moves, *process, *answered) error {
	return func(ctx context.Context, _ *moves, p *process, a *answered) error {
		door := map[string]net.Listener{"leaf": p.doors.Leaf, "tinyid": p.doors.TinyID, "cosid": p.doors.CosID}[name]
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+door.Addr().String()+path, nil)
		if err != nil {
			return err
		}
		answer, err := testcluster.Client().Do(r)
		if err != nil {
			return allocator.Errorf(allocator.Unavailable, "%w", err)
		}
		defer func() { _ = answer.Body.Close() }()
		body, err := io.ReadAll(answer.Body)
		id, bad := strconv.ParseInt(string(body), 10, 64)
		if err = errors.Join(err, bad); err != nil || answer.StatusCode != http.StatusOK {
			return allocator.Errorf(allocator.Unavailable, "%s: %s", answer.Status, body)
		}
		return a.one(id, nil)
	}
}

// useUp lowers the limit of a tag to a little above all that is leased, and takes IDs until there are none.
func (m *moves) useUp() {
	limit := int64(0)
	for _, mark := range m.marks("limited") {
		limit = max(limit, mark.Next)
	}
	limit -= 100 // of what is held
	m.update("limited", func(s *record.TagSettings) { s.Limit = limit })
	m.sleep(nil, 2*time.Second, 0)
	for _, p := range m.issuing() {
		var err error
		for n := 0; n < 100 && err == nil; n++ {
			a := answered{by: p, tag: "limited", began: time.Now()}
			var r *marchv1.NextBatchResponse
			if r, err = p.room.NextBatch(m.ctx, &marchv1.NextBatchRequest{Tag: "limited", Count: 100}); err == nil {
				for _, run := range r.GetRuns() {
					a.runs = append(a.runs, allocator.Run{First: run.GetFirst(), Count: run.GetCount()})
				}
				m.note(a)
				if last := a.runs[len(a.runs)-1]; last.First+last.Count > limit {
					m.problem("limited", "%s issued %v; the limit is %d", p.id, a.runs, limit)
				}
			}
		}
		if allocator.KindOf(err) != allocator.Exhausted {
			m.problem("limited", "%s, below the limit %d: %v; want exhausted", p.id, limit, err)
		}
	}
}
