package room

import (
	"context"
	"net"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/peer"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/machine"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/period"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/access"
	"github.com/march-id/march/internal/crash"
	"github.com/march-id/march/internal/foreign"
	"github.com/march-id/march/internal/serve"
	"github.com/march-id/march/room/cosid"
	"github.com/march-id/march/room/door"
	"github.com/march-id/march/room/leaf"
	"github.com/march-id/march/room/redis"
	"github.com/march-id/march/room/tinyid"
)

// Doors are where an instance answers other systems' clients. If a listener is nil, the
// instance does not have that door.
type Doors struct {
	Redis, Leaf, TinyID, CosID net.Listener
	// Plain serves them without TLS, also if the room has a certificate.
	Plain bool
	// LeafSnowflake is the tag of time-ordered IDs that Leaf's Snowflake answers from; empty
	// for none.
	LeafSnowflake allocator.Tag
	// CosIDMachines is the name of the layout's reserved range from which clients of CosId get
	// machine IDs; empty for none.
	CosIDMachines allocator.Room
	// TinyIDTokens say which callers of TinyID may take which IDs. If there are none, callers
	// give tokens of Access; TinyID needs one of the two.
	TinyIDTokens *tinyid.Tokens
}

// Close closes the listeners.
func (d *Doors) Close() {
	for _, l := range []net.Listener{d.Redis, d.Leaf, d.TinyID, d.CosID} {
		if l != nil {
			_ = l.Close()
		}
	}
}

// keeps returns the names of the doors whose clients keep IDs: the segments of TinyId and
// CosId, and the numbers of an INCRBY.
func (d *Doors) keeps() (names []string) {
	for _, door := range []struct {
		name string
		at   net.Listener
	}{{"redis", d.Redis}, {"tinyid", d.TinyID}, {"cosid", d.CosID}} {
		if door.at != nil {
			names = append(names, door.name)
		}
	}
	return names
}

func (d *Doors) validate(gate *access.Gate) error {
	if d.TinyID != nil && d.TinyIDTokens == nil && gate == nil {
		return allocator.Errorf(allocator.Invalid, "doors: TinyID has no tokens, and the room has no policy")
	}
	return nil
}

// addDoors adds the doors for other systems' clients. They take IDs as IDService does.
func (s *Server) addDoors() error {
	calls := door.Calls{Next: s.doorNext, TryNext: s.doorTry, NextN: s.doorN, NextRun: s.doorRun, NextKept: s.doorKept,
		Peek: s.doorPeek, Create: s.doorCreate}
	if s.cfg.Access != nil {
		calls.Login, calls.Barred = s.doorLogin, s.cfg.Access.Barred
	}
	add := func(l net.Listener, run func(context.Context, net.Listener) error, metrics prometheus.Collector) {
		door := serve.Door{Listener: l, Run: run}
		if !s.cfg.Doors.Plain {
			door.TLS = s.cfg.TLS
		}
		s.doors = append(s.doors, door)
		if s.cfg.Metrics != nil {
			s.cfg.Metrics.Register(metrics)
		}
	}
	at := s.cfg.Doors
	if at.Redis != nil {
		d := redis.New(redis.Config{Calls: calls, Version: s.cfg.Build, Logger: s.log})
		add(at.Redis, d.Run, d.Metrics())
	}
	if at.Leaf != nil {
		cfg := leaf.Config{Next: calls.Next}
		if at.LeafSnowflake != "" {
			cfg.Snowflake = s.doorTime
		}
		d, err := leaf.New(cfg)
		if err != nil {
			return err
		}
		d.Guard(s.cfg.Access, s.cfg.AllowedHosts)
		add(at.Leaf, d.Run, d.Metrics())
	}
	if at.TinyID != nil {
		d := tinyid.New(calls, at.TinyIDTokens)
		d.Guard(s.cfg.Access, s.cfg.AllowedHosts)
		add(at.TinyID, d.Run, d.Metrics())
	}
	if at.CosID != nil {
		d := cosid.New(calls, s.doorMachines())
		d.Guard(s.cfg.Access, s.cfg.AllowedHosts)
		add(at.CosID, d.Run, d.Metrics())
	}
	return nil
}

// machines are the machine IDs of clients that the room's policy allows.
type machines struct {
	of   *machine.Machines
	room *Server
}

// Allowed asks for the right to take IDs of the tag that has the namespace's name.
func (m machines) Allowed(ctx context.Context, namespace string) error {
	tag, err := foreign.Tag(namespace)
	if err != nil {
		return err
	}
	return m.room.cfg.Access.Take(ctx, string(tag), 1)
}

func (m machines) Distribute(ctx context.Context, c machine.Client, bits int,
	guard time.Duration) (number, last int64, err error) {
	c.By = m.holder(ctx, c)
	number, last, err = m.of.Distribute(ctx, c, bits, guard)
	m.room.cfg.Access.OverQuota(err)
	return number, last, m.room.forCaller(err)
}

func (m machines) Guard(ctx context.Context, c machine.Client) error {
	c.By = m.holder(ctx, c)
	return m.room.forCaller(m.of.Guard(ctx, c))
}

// holder returns the caller that asks for a client. Allowed came before, so the namespace is a tag's name.
func (m machines) holder(ctx context.Context, c machine.Client) allocator.Holder {
	tag, _ := foreign.Tag(c.Namespace)
	return m.room.cfg.Access.Holder(ctx, marchv1.IDService_NextBatch_FullMethodName, string(tag))
}

func (m machines) Revert(ctx context.Context, c machine.Client) error {
	return m.room.forCaller(m.of.Revert(ctx, c))
}

func (s *Server) doorMachines() cosid.Machines {
	name := s.cfg.Doors.CosIDMachines
	if name == "" {
		return nil
	}
	return machines{machine.New(s.ledger, s.cfg.Room, name), s}
}

// doorLogin returns the context of a token's subject.
func (s *Server) doorLogin(ctx context.Context, token string) (context.Context, error) {
	given := access.Credentials{Token: token}
	if p, ok := peer.FromContext(ctx); ok {
		given.Address = p.Addr.String()
		if host, _, err := net.SplitHostPort(given.Address); err == nil {
			given.Address = host
		}
	}
	if token == "" { // which would be an anonymous caller
		return nil, allocator.Errorf(allocator.Unauthenticated, "the token is empty; `march token create` makes one")
	}
	return s.cfg.Access.Login(ctx, given)
}

func (s *Server) doorNext(ctx context.Context, tag string) (int64, error) {
	if err := s.cfg.Access.Take(ctx, tag, 1); err != nil {
		return 0, err
	}
	id, _, err := s.next(ctx, tag)
	if err == nil {
		s.issued.Add(1)
		crash.Here(crash.BeforeReply)
	}
	return id, err
}

// doorTry takes an ID that is in memory, for a caller with a known subject. An ID of a quota
// may be counted once more if another caller takes the last ID just then.
func (s *Server) doorTry(ctx context.Context, tag string) (id int64, ok bool, err error) {
	chain := s.tags.counter(tag)
	if chain == nil || usable(tag, chain.text) != nil || !chain.Holds() || !s.cfg.Access.Knows(ctx) {
		return 0, false, nil
	}
	if err := s.cfg.Access.Take(ctx, tag, 1); err != nil {
		return 0, false, err
	}
	if id, ok = chain.TryNext(); !ok {
		return 0, false, nil
	}
	chain.ask()
	s.issued.Add(1)
	crash.Here(crash.BeforeReply)
	return id, true, nil
}

func (s *Server) doorRun(ctx context.Context, tag string, n int64) (first int64, err error) {
	if err := s.cfg.Access.Take(ctx, tag, n); err != nil {
		return 0, err
	}
	var run allocator.Run
	if err = s.with(ctx, tag, func(i issuer) (err error) {
		run, err = s.takeRun(ctx, i, n)
		return err
	}); err != nil {
		return 0, err
	}
	s.issued.Add(n)
	crash.Here(crash.BeforeReply)
	return run.First, nil
}

func (s *Server) doorN(ctx context.Context, tag string, n int64) ([]allocator.Run, error) {
	if err := s.cfg.Access.Take(ctx, tag, n); err != nil {
		return nil, err
	}
	runs, _, _, err := s.nextN(ctx, &marchv1.NextBatchRequest{Tag: tag, Count: n})
	if err != nil {
		return nil, err
	}
	s.issued.Add(n)
	crash.Here(crash.BeforeReply)
	return runs, nil
}

// doorTime takes an ID of the tag that Leaf's Snowflake answers from.
func (s *Server) doorTime(ctx context.Context) (id int64, err error) {
	tag := string(s.cfg.Doors.LeafSnowflake)
	if err := s.cfg.Access.Take(ctx, tag, 1); err != nil {
		return 0, err
	}
	if err := s.exists(ctx, tag); err != nil {
		return 0, err
	}
	if err = s.with(ctx, tag, func(i issuer) (err error) {
		if _, timed := i.(*TimeTag); !timed {
			return allocator.Errorf(allocator.Refused,
				"tag %s has no time-ordered IDs, and is that of Leaf's Snowflake", tag)
		}
		id, err = i.Next(ctx)
		return err
	}); err != nil {
		return 0, err
	}
	s.issued.Add(1)
	crash.Here(crash.BeforeReply)
	return id, nil
}

// exists returns an error where a tag does not exist, before anything is asked of it that
// would make one where the room creates tags.
func (s *Server) exists(ctx context.Context, tag string) error {
	if !s.cfg.CreateTags || s.tags.get(tag) != nil {
		return nil
	}
	_, err := s.admin.Tag(ctx, allocator.Tag(tag))
	return s.forCaller(err)
}

// doorKept takes consecutive IDs for a caller that keeps them: n of them, or for an n of 0
// the tag's min_step, as far as the room's range and NextRun allow.
func (s *Server) doorKept(ctx context.Context, tag string, n int64) (run allocator.Run, err error) {
	if err := s.cfg.Access.Take(ctx, tag, n); err != nil {
		return allocator.Run{}, err
	}
	err = s.with(ctx, tag, func(i issuer) (err error) {
		c, counts := i.(*counter)
		if !counts {
			_, err := s.takeRun(ctx, i, n) // it refuses
			return err
		}
		if c.Gated() {
			return allocator.Errorf(allocator.Refused,
				"tag %s is strict: a caller that keeps its IDs would go on with them after their range is "+
					"another room's", tag)
		}
		if s.tags.periods.of(c.Tag()) != (period.Period{}) {
			return allocator.Errorf(allocator.Refused,
				"tag %s has a period: a caller that keeps its IDs would go on with them in the next one", tag)
		}
		settings := c.Settings()
		most := (settings.MaxStep + 1) / 2
		record, _ := s.ledger.Layout()
		if own, ok := record.Layout.Ranges[s.cfg.Room]; ok && own.Width() < record.Layout.Boundary {
			most = min(most, own.Width())
		}
		switch {
		case n == 0:
			n = min(settings.MinStep, most)
			if err := s.cfg.Access.Take(ctx, tag, n); err != nil { // counts them for the quotas
				return err
			}
		case n > most:
			return allocator.Errorf(allocator.Invalid,
				"%d; allowed: 1 to %d, as no more of the room's range lie in a row", n, most)
		}
		run, err = s.takeRun(ctx, c, n)
		return err
	})
	if err != nil {
		return allocator.Run{}, err
	}
	s.issued.Add(run.Count)
	s.leased.Add(run.Count)
	crash.Here(crash.BeforeReply)
	return run, nil
}

// doorPeek returns the next of the IDs that the instance holds, or else the first that it
// may lease. It creates no tag, and counts as no request for IDs.
func (s *Server) doorPeek(ctx context.Context, tag string) (next int64, err error) {
	if err := s.cfg.Access.MayRead(ctx, tag); err != nil {
		return 0, err
	}
	if err := s.exists(ctx, tag); err != nil {
		return 0, err
	}
	i, err := s.tag(ctx, tag)
	if err != nil {
		return 0, s.forCaller(err)
	}
	chain, counts := i.(*counter)
	if !counts {
		return 0, allocator.Errorf(allocator.Refused, "tag %s has time-ordered IDs: the next one is not known", tag)
	}
	if held := chain.Segments(); len(held) > 0 {
		return held[0].First, nil
	}
	return max(chain.Status().Last+1, chain.getSpace().start), nil
}

// exact is the end of the numbers that every client reads as they are: those in JavaScript round above it.
const exact = 1 << 53

// doorCreate creates a tag, if this room may create tags. The tag ends before exact, unless the caller begins it near
// there or above, or the boundary is too large: no operator chose that clients may take one of its IDs for another one.
func (s *Server) doorCreate(ctx context.Context, name string, start int64) (made bool, err error) {
	tag, err := allocator.ParseTag(name)
	if err != nil {
		return false, err
	}
	settings := record.DefaultTag()
	settings.Start, settings.Limit = start, exact
	stored, _ := s.ledger.Layout()
	if start >= exact/2 || settings.CheckBlocks(max(stored.Layout.Boundary, 1)) != nil {
		settings.Limit = allocator.MaxID
	}
	if !s.cfg.CreateTags {
		switch _, err := s.doorPeek(ctx, name); {
		case err == nil, allocator.KindOf(err) == allocator.Refused: // the tag exists, of either kind
			return false, nil
		case allocator.KindOf(err) != allocator.NotFound:
			return false, err
		}
		return false, allocator.Errorf(allocator.Refused, "tag %s does not exist, and this room creates none; "+
			"create it with `march tag create %s --start %d --limit %d`, or start the room with --create-tags",
			tag, tag, start, settings.Limit)
	}
	if err := s.cfg.Access.MayCreate(ctx, name); err != nil {
		return false, err
	}
	actor := "room " + string(s.cfg.Room)
	if p, ok := peer.FromContext(ctx); ok {
		actor += ", for " + p.Addr.String()
	}
	_, err = s.admin.CreateTag(ctx, tag, settings, actor)
	if err != nil && allocator.KindOf(err) == allocator.Exists {
		return false, nil
	}
	return err == nil, s.forCaller(err)
}
