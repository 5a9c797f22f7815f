package admin

import (
	"cmp"
	"context"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/oklog/ulid/v2"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
)

// Config are the settings of an Admin.
type Config struct {
	// MaxTags bounds the tags of the cluster: CreateTag refuses more. Processes
	// that create tags at the same time may exceed it by the tags that they create
	// within 10 s. Default, also for 0: 2,000,000.
	MaxTags int64 `flag:"max-tags" least:"1" help:"how many tags the cluster may have: this server creates no more"`
	// TooManyTags, if set, is called for each tag that is refused because of
	// MaxTags.
	TooManyTags func()
	// Formats is the generation of stored formats that Init turns on: a test of clusters that
	// an older version made gives 1. Default, also for 0: record.Formats.
	Formats int
}

// DefaultConfig returns the defaults.
func DefaultConfig() Config { return Config{MaxTags: defaultMaxTags} }

// Admin changes and reads what a cluster shares: tags, layouts, migrations, settings,
// registrations, the audit. Methods are safe for concurrent use. Their errors carry a
// Kind: Unavailable if etcd did not answer in time. A change may then have happened or
// not.
type Admin struct {
	view
	tagCount tagCount
}

// view reads what a cluster shares.
type view struct {
	// Ledger is this process's view of the cluster. All transactions go through it.
	Ledger *ledger.Ledger

	cfg  Config
	uuid string // the cluster must have this uuid; empty for any
	keys record.Keys
	now  func() time.Time // the time of records, by this process's clock
	log  hclog.Logger

	lastActive atomic.Pointer[string] // the ID of the migration that was under way when it was last read
	first      atomic.Pointer[head]   // nil before the first tags were read
}

// head is where the first tags by name ended when they were last read: of the most that were.
type head struct {
	tags int
	end  string // the key after them
}

// New returns the administration of a ledger's cluster.
func New(l *ledger.Ledger, cfg Config) *Admin {
	cfg.MaxTags, cfg.Formats = cmp.Or(cfg.MaxTags, defaultMaxTags), cmp.Or(cfg.Formats, record.Formats)
	c := l.Cluster()
	return &Admin{view: view{Ledger: l, cfg: cfg, uuid: c.UUID, keys: c.Keys, now: c.Now, log: c.Log}}
}

// audit returns the operation that records a change, as Keys.Audited does.
func (a *view) audit(actor, action, object string, from, to []byte) store.Op {
	return a.keys.Audited(a.now(), actor, action, object, from, to)
}

// ActiveMigration returns the migration that is under way, if one is.
func (a *view) ActiveMigration(ctx context.Context) (record.Migration, bool, error) {
	if err := a.Ledger.AttachToRead(ctx); err != nil {
		return record.Migration{}, false, err
	}
	answer, err := a.Ledger.Gets(ctx, a.readActive()...)
	if err != nil {
		return record.Migration{}, false, err
	}
	return a.activeOf(ctx, answer.Got)
}

// readActive reads what activeOf needs: which migration is under way, and the one that was when it was last read.
func (a *view) readActive() []store.Op {
	last := ""
	if id := a.lastActive.Load(); id != nil {
		last = *id
	}
	return []store.Op{store.OpGet(a.keys.ActiveMigration()), store.OpGet(a.keys.Migration(last))}
}

func (a *view) activeOf(ctx context.Context, got [][]store.KV) (record.Migration, bool, error) {
	if len(got[0]) == 0 {
		return record.Migration{}, false, nil
	}
	var active record.ActiveMigration
	if err := record.Decode(got[0][0], &active); err != nil {
		return record.Migration{}, false, err
	}
	a.lastActive.Store(&active.Name)
	if len(got[1]) > 0 && got[1][0].Key == a.keys.Migration(active.Name) {
		m, err := record.ReadAs[record.Migration](a.keys, got[1][0])
		return m, err == nil, err
	}
	m, err := a.Migration(ctx, active.Name)
	if allocator.KindOf(err) == allocator.NotFound {
		err = &record.KeyError{Key: a.keys.ActiveMigration(), Err: err}
	}
	if err == nil && m.State.Ended() { // it ended between the two reads
		return record.Migration{}, false, nil
	}
	return m, err == nil, err
}

// Migration returns a migration. Its error is NotFound if there is none with that
// ID.
func (a *view) Migration(ctx context.Context, id string) (record.Migration, error) {
	if _, err := ulid.ParseStrict(id); err != nil {
		return record.Migration{}, allocator.Errorf(allocator.Invalid,
			"migration: %q is not an ID of one (26 letters and digits)", id)
	}
	return readOne(ctx, a, a.keys.Migration(id), reads[record.Migration](a), allocator.Errorf(allocator.NotFound,
		"migration %s does not exist; `march migrate list` lists those that do", id))
}
