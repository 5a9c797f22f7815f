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
	Plain         bool
	LeafSnowflake allocator.Tag  `flag:"leaf-snowflake" help:"the tag of time-ordered IDs for Leaf's /api/snowflake/get"`
	CosIDMachines allocator.Room `flag:"cosid-machines" help:"the layout's reserved range for machine IDs of CosId's clients; empty for none"`
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

// doors are the doors for other systems' clients, which take IDs as IDService does: a door.Room.
type doors struct {
	room *Server
	open []serve.Door
}

// start makes the doors that have a listener.
func (d *doors) start() error {
	s := d.room
	add := func(l net.Listener, of interface {
		Run(ctx context.Context, l net.Listener) error
		Metrics() prometheus.Collector
	}) {
		if web, is := of.(*door.HTTP); is {
			web.Guard(s.cfg.Access, s.cfg.AllowedHosts)
		}
		opened := serve.Door{Listener: l, Run: of.Run}
		if !s.cfg.Doors.Plain {
			opened.TLS = s.cfg.TLS
		}
		d.open = append(d.open, opened)
		if s.cfg.Metrics != nil {
			s.cfg.Metrics.Register(of.Metrics())
		}
	}
	at := s.cfg.Doors
	if at.Redis != nil {
		add(at.Redis, redis.New(redis.Config{Room: d, Version: s.cfg.Build, Logger: s.log}))
	}
	if at.Leaf != nil {
		of, err := leaf.New(d, at.LeafSnowflake)
		if err != nil {
			return err
		}
		add(at.Leaf, of)
	}
	if at.TinyID != nil {
		add(at.TinyID, tinyid.New(d, at.TinyIDTokens))
	}
	if at.CosID != nil {
		add(at.CosID, cosid.New(d, d.machines()))
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

func (d *doors) machines() cosid.Machines {
	name := d.room.cfg.Doors.CosIDMachines
	if name == "" {
		return nil
	}
	return machines{machine.New(d.room.ledger, d.room.cfg.Room, name), d.room}
}

func (d *doors) Open() bool { return d.room.cfg.Access == nil }

func (d *doors) Barred(ctx context.Context) bool { return d.room.cfg.Access.Barred(ctx) }

// Login returns the context of a token's subject.
func (d *doors) Login(ctx context.Context, token string) (context.Context, error) {
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
	return d.room.cfg.Access.Login(ctx, given)
}

// give asks for the caller's right to n IDs of a tag, has take take them, and counts what it took.
func (d *doors) give(ctx context.Context, tag string, n int64, take func() (taken int64, err error)) error {
	if err := d.room.cfg.Access.Take(ctx, tag, n); err != nil {
		return err
	}
	taken, err := take()
	if err == nil {
		d.room.count(taken)
	}
	return err
}

func (d *doors) Next(ctx context.Context, tag string) (id int64, err error) {
	err = d.give(ctx, tag, 1, func() (int64, error) {
		id, _, err = d.room.next(ctx, tag)
		return 1, err
	})
	return id, err
}

// TryNext takes an ID that is in memory, for a caller with a known subject. An ID of a quota
// may be counted once more if another caller takes the last ID just then.
func (d *doors) TryNext(ctx context.Context, tag string) (id int64, ok bool, err error) {
	chain := d.room.tags.counter(tag)
	if chain == nil || usable(tag, chain.text) != nil || !chain.Holds() || !d.room.cfg.Access.Knows(ctx) {
		return 0, false, nil
	}
	err = d.give(ctx, tag, 1, func() (int64, error) {
		if id, ok = chain.TryNext(); !ok {
			return 0, nil
		}
		chain.ask()
		return 1, nil
	})
	return id, ok, err
}

func (d *doors) NextRun(ctx context.Context, tag string, n int64) (first int64, err error) {
	err = d.give(ctx, tag, n, func() (int64, error) {
		return n, d.room.with(ctx, tag, func(i issuer) error {
			run, err := d.room.takeRun(ctx, i, n)
			first = run.First
			return err
		})
	})
	return first, err
}

func (d *doors) NextN(ctx context.Context, tag string, n int64) (runs []allocator.Run, err error) {
	err = d.give(ctx, tag, n, func() (int64, error) {
		runs, _, _, err = d.room.nextN(ctx, &marchv1.NextBatchRequest{Tag: tag, Count: n})
		return n, err
	})
	return runs, err
}

func (d *doors) NextTime(ctx context.Context, tag string) (id int64, err error) {
	err = d.give(ctx, tag, 1, func() (int64, error) {
		if err := d.exists(ctx, tag); err != nil {
			return 0, err
		}
		return 1, d.room.with(ctx, tag, func(i issuer) (err error) {
			if _, timed := i.(*TimeTag); !timed {
				return allocator.Errorf(allocator.Refused,
					"tag %s has no time-ordered IDs, and is that of Leaf's Snowflake", tag)
			}
			id, err = i.Next(ctx)
			return err
		})
	})
	return id, err
}

// exists returns an error where a tag does not exist, before anything is asked of it that
// would make one where the room creates tags.
func (d *doors) exists(ctx context.Context, tag string) error {
	if !d.room.cfg.CreateTags || d.room.tags.memory.get(tag) != nil {
		return nil
	}
	_, err := d.room.admin.Tag(ctx, allocator.Tag(tag))
	return d.room.forCaller(err)
}

// NextKept takes consecutive IDs for a caller that keeps them: n of them, or for an n of 0
// the tag's min_step, as far as the room's range and NextRun allow.
func (d *doors) NextKept(ctx context.Context, tag string, n int64) (run allocator.Run, err error) {
	err = d.give(ctx, tag, n, func() (int64, error) {
		err := d.room.with(ctx, tag, func(i issuer) (err error) {
			c, is := i.(*counter)
			if ordered(i) {
				return &allocator.OrderedError{Tag: allocator.Tag(tag)}
			}
			if is {
				if n, err = d.keepable(ctx, c, n); err != nil {
					return err
				}
			}
			run, err = d.room.takeRun(ctx, i, n)
			return err
		})
		return run.Count, err
	})
	if err != nil {
		return allocator.Run{}, err
	}
	d.room.leased.Add(run.Count)
	return run, nil
}

// keepable returns how many IDs of a counter a caller may keep that asks for n of them.
func (d *doors) keepable(ctx context.Context, c *counter, n int64) (int64, error) {
	tag := c.Tag()
	if c.Gated() {
		return 0, allocator.Errorf(allocator.Refused,
			"tag %s is strict: a caller that keeps its IDs would go on with them after their range is "+
				"another room's", tag)
	}
	if c.period != (period.Period{}) {
		return 0, allocator.Errorf(allocator.Refused,
			"tag %s has a period: a caller that keeps its IDs would go on with them in the next one", tag)
	}
	settings := c.Settings()
	most := (settings.MaxStep + 1) / 2
	record, _ := d.room.ledger.Layout()
	if own, ok := record.Layout.Ranges[d.room.cfg.Room]; ok && own.Width() < record.Layout.Boundary {
		most = min(most, own.Width())
	}
	if n > most {
		return 0, allocator.Errorf(allocator.Invalid,
			"%d; allowed: 1 to %d, as no more of the room's range lie in a row", n, most)
	}
	if n > 0 {
		return n, nil
	}
	n = min(settings.MinStep, most)
	return n, d.room.cfg.Access.Take(ctx, string(tag), n) // counts them for the quotas
}

// Peek returns the next of the IDs that the instance holds, or else the first that it
// may lease. It creates no tag, and counts as no request for IDs.
func (d *doors) Peek(ctx context.Context, tag string) (next int64, err error) {
	if err := d.room.cfg.Access.MayRead(ctx, tag); err != nil {
		return 0, err
	}
	if err := d.exists(ctx, tag); err != nil {
		return 0, err
	}
	i, err := d.room.tags.get(ctx, tag)
	if err != nil {
		return 0, d.room.forCaller(err)
	}
	chain, counts := i.(*counter)
	if !counts {
		return 0, allocator.Errorf(allocator.Refused, "tag %s has time-ordered IDs, or another instance of the room "+
			"issues them: the next one is not known", tag)
	}
	if held := chain.Segments(); len(held) > 0 {
		return held[0].First, nil
	}
	return max(chain.Status().Last+1, chain.getSpace().start), nil
}

// exact is the end of the numbers that every client reads as they are: those in JavaScript round above it.
const exact = 1 << 53

// Create creates a tag, if this room may create tags. The tag ends before exact, unless the caller begins it near
// there or above, or the boundary is too large: no operator chose that clients may take one of its IDs for another one.
func (d *doors) Create(ctx context.Context, name string, start int64) (made bool, err error) {
	tag, err := allocator.ParseTag(name)
	if err != nil {
		return false, err
	}
	settings := record.DefaultTag()
	settings.Start, settings.Limit = start, exact
	stored, _ := d.room.ledger.Layout()
	if start >= exact/2 || settings.CheckBlocks(max(stored.Layout.Boundary, 1)) != nil {
		settings.Limit = allocator.MaxID
	}
	if !d.room.cfg.CreateTags {
		switch _, err := d.Peek(ctx, name); {
		case err == nil, allocator.KindOf(err) == allocator.Refused: // the tag exists, of either kind
			return false, nil
		case allocator.KindOf(err) != allocator.NotFound:
			return false, err
		}
		return false, allocator.Errorf(allocator.Refused, "tag %s does not exist, and this room creates none; "+
			"create it with `march tag create %s --start %d --limit %d`, or start the room with --create-tags",
			tag, tag, start, settings.Limit)
	}
	if err := d.room.cfg.Access.MayCreate(ctx, name); err != nil {
		return false, err
	}
	actor := "room " + string(d.room.cfg.Room)
	if p, ok := peer.FromContext(ctx); ok {
		actor += ", for " + p.Addr.String()
	}
	_, err = d.room.admin.CreateTag(ctx, tag, settings, actor)
	if err != nil && allocator.KindOf(err) == allocator.Exists {
		return false, nil
	}
	return err == nil, d.room.forCaller(err)
}
