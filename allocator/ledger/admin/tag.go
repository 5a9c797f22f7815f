package admin

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/allocator/plan"
)

// CreateTag creates a tag, or gives the name of a deleted one its next life: see section 3.5 of
// the design. Its errors are Invalid, Exists, TooMany, Unavailable, and Refused where IDs of an
// earlier life may come again.
//
// The name may have been in use in a history that etcd lost, so the tag's first
// leases leave the margins of all recovers free. Those of CreateFreshTag do not.
func (a *Admin) CreateTag(ctx context.Context, name allocator.Tag, settings record.TagSettings,
	actor string) (record.Tag, error) {
	made, _, err := a.createTag(ctx, record.Tag{Name: name, TagSettings: settings}, creation{}, actor)
	return made, err
}

// CreateFreshTag creates a tag whose name, by an operator's word, was never in use.
// Its errors are CreateTag's; Refused if etcd has a key or a mark of the name.
func (a *Admin) CreateFreshTag(ctx context.Context, name allocator.Tag, settings record.TagSettings,
	actor string) (record.Tag, error) {
	made, _, err := a.createTag(ctx, record.Tag{Name: name, TagSettings: settings}, creation{fresh: true}, actor)
	return made, err
}

// ReuseTag is CreateTag where IDs of an earlier life may come again, by an operator's word. risk
// says which; nil if none does.
func (a *Admin) ReuseTag(ctx context.Context, name allocator.Tag, settings record.TagSettings,
	actor string) (made record.Tag, risk, err error) {
	return a.createTag(ctx, record.Tag{Name: name, TagSettings: settings}, creation{reuse: true}, actor)
}

// creation is what an operator says of a name.
type creation struct{ fresh, reuse bool }

func (a *Admin) createTag(ctx context.Context, t record.Tag, says creation,
	actor string) (made record.Tag, risk, err error) {
	if err := cmp.Or(t.TagSettings.Validate(), t.CheckFormat()); err != nil {
		return record.Tag{}, nil, err
	}
	if t.Time != nil {
		if err := t.Time.CheckTime(a.now()); err != nil {
			return record.Tag{}, nil, err
		}
	}
	for range createAttempts {
		var fits []store.Cond
		if fits, err = a.fits(ctx, t); err != nil {
			return record.Tag{}, nil, err
		}
		var l life
		if l, err = a.nextLife(ctx, t, says); err != nil {
			return record.Tag{}, nil, err
		}
		if !l.past.there {
			if err := a.mayCreateTag(ctx, t.Name); err != nil {
				return record.Tag{}, nil, err
			}
		}
		l.tag.Created = a.now()
		made, err = a.putTag(ctx, l.tag, append(l.conds, fits...), l.action, l.past.kv.Value, actor)
		if allocator.KindOf(err) != allocator.Conflict {
			return made, l.risk, err
		}
	}
	return record.Tag{}, nil, err
}

// createAttempts bounds how often a creation starts over because the name, its marks, the layout
// or the epoch changed meanwhile.
const createAttempts = 5

// life is the next life of a name.
type life struct {
	tag    record.Tag // as it is to be written,
	conds  []store.Cond
	past   past
	action string // for the audit
	risk   error  // what may come again; only by the operator's word
}

// nextLife returns the next life of a name. Its errors are those of CreateTag.
func (a *Admin) nextLife(ctx context.Context, t record.Tag, says creation) (l life, err error) {
	if _, err := a.Ledger.Refresh(ctx); err != nil {
		return l, err
	}
	s, _ := a.Ledger.State()
	p, err := a.past(ctx, s, t.Name)
	if err != nil {
		return l, err
	}
	l = life{tag: t, conds: []store.Cond{store.Absent(a.keys.Tag(t.Name))}, past: p, action: "create tag"}
	if p.there {
		l.conds = []store.Cond{store.Unchanged(p.kv)}
	}
	if t.StrictOrder != "" {
		if !s.Layout().Upgraded() {
			return l, allocator.Errorf(allocator.Refused, "strict_order: not before the formats of this version are "+
				"turned on: first give rooms the rights that `march etcd roles` prints; then `march cluster upgrade`")
		}
		l.conds = append(l.conds, a.Ledger.Holds(s)...) // older builds do not read such a tag
	}
	dead, deadErr := record.ReadAs[record.Tag](a.keys, p.kv)
	switch upgraded := s.Layout().Upgraded(); {
	case p.there && (deadErr != nil || dead.Deleted.IsZero()):
		return l, allocator.Errorf(allocator.Exists, "tag %s exists already", t.Name)
	case says.fresh && (p.there || len(p.marks) > 0):
		return l, allocator.Errorf(allocator.Refused,
			"tag %s is not fresh: a tag of its name was deleted, or rooms have marks of one; create it without --fresh",
			t.Name)
	case says.fresh:
		l.tag.BaseTotal = s.MarginTotal()
		l.conds = append(append(l.conds, a.Ledger.Holds(s)...), p.conds...)
		return l, nil
	case !p.there && (!upgraded || len(p.marks) == 0):
		return l, nil
	}
	// The margin of a recover to come is not known while leasing is halted.
	if s, err = a.Ledger.CheckNow(ctx); err != nil {
		return l, err
	}
	l.conds = append(l.conds, a.Ledger.Holds(s)...)
	if p.there {
		l.tag, l.risk = t.After(dead, s.End(dead, p.marks, a.now()), a.now())
	} else {
		l.risk = t.Unknown(s.MarginTotal(), s.Layout().Ever, p.marks)
	}
	if l.risk == nil {
		return l, nil
	}
	if !says.reuse {
		return l, allocator.Errorf(allocator.KindOf(l.risk), "%w; choose another name, or accept that: "+
			"`march tag create %s --reuse`", l.risk, t.Name)
	}
	l.action = "create tag --reuse"
	return l, nil
}

// UpdateTag changes a tag's settings with change, which may be called more than
// once. start cannot be changed. Its errors are NotFound,
// Invalid, change's own, Conflict and Unavailable.
func (a *Admin) UpdateTag(ctx context.Context, name allocator.Tag, change func(*record.TagSettings) error,
	actor string) (t record.Tag, err error) {
	err = insist(func() (err error) {
		t, err = a.UpdateTagAt(ctx, name, 0, change, actor)
		return err
	})
	return t, err
}

// insist makes a change, and again if another writer came before, a few times in all.
func insist(change func() error) (err error) {
	for range 5 {
		if err = change(); allocator.KindOf(err) != allocator.Conflict {
			break
		}
	}
	return err
}

// UpdateTagAt is UpdateTag for a tag whose settings were stored at a revision, 0 for any.
// Its error is Conflict if they were changed since, also while it runs.
func (a *Admin) UpdateTagAt(ctx context.Context, name allocator.Tag, revision int64,
	change func(*record.TagSettings) error, actor string) (record.Tag, error) {
	t, next, home, err := a.preview(ctx, name, revision, change)
	if err != nil {
		return record.Tag{}, err
	}
	if bytes.Equal(next.Encode(""), t.Encode("")) {
		return t, nil
	}
	return a.putTag(ctx, next, append(home, store.Unchanged(t.KV)), "update tag", t.KV.Value, actor)
}

// PreviewTag returns a tag as it is, and as UpdateTagAt would make it. It changes nothing. Its
// errors are those of UpdateTagAt.
func (a *Admin) PreviewTag(ctx context.Context, name allocator.Tag, revision int64,
	change func(*record.TagSettings) error) (t, next record.Tag, err error) {
	t, next, _, err = a.preview(ctx, name, revision, change)
	return t, next, err
}

// preview is PreviewTag, and returns what a change of the tag's home rests on.
func (a *Admin) preview(ctx context.Context, name allocator.Tag, revision int64,
	change func(*record.TagSettings) error) (t, next record.Tag, home []store.Cond, err error) {
	t, err = a.Tag(ctx, name)
	if err == nil {
		err = unchangedSince(t.KV, name, revision)
	}
	if err != nil {
		return t, next, nil, err
	}
	next = t
	next.TagSettings = t.TagSettings.Clone()
	if err := change(&next.TagSettings); err != nil {
		return t, next, nil, err
	}
	if err := cmp.Or(next.TagSettings.Validate(), t.TagSettings.Changeable(next.TagSettings)); err != nil {
		return t, next, nil, err
	}
	if t.Limit != next.Limit {
		err = next.CheckFormat()
	}
	if err == nil && t.Home != next.Home {
		home, err = a.fits(ctx, next)
	}
	return t, next, home, err
}

// fits checks what a tag needs of layouts, now and after each move of a migration under way: each room has a worker for
// a tag of kind time, and the home of a tag has a range, also in the migration's first layout, to which an abort leads
// back. It returns the conditions that this rests on. Its errors are Invalid, and Refused because of workers or of a
// migration.
func (a *Admin) fits(ctx context.Context, t record.Tag) ([]store.Cond, error) {
	if t.Home == "" && t.Time == nil {
		return nil, nil
	}
	stored, err := a.Ledger.Refresh(ctx)
	if err != nil {
		return nil, err
	}
	if _, serves := stored.Layout.Ranges[t.Home]; t.Home != "" && !serves {
		return nil, allocator.Errorf(allocator.Invalid, "home: room %s has no range; allowed: %v", t.Home,
			stored.Layout.Rooms())
	}
	if t.Time != nil {
		if err := t.Time.CheckSlices(stored.Layout); err != nil {
			return nil, err
		}
	}
	conds := []store.Cond{{Key: a.keys.Layout(), ModRevision: stored.Revision}}
	m, active, err := a.ActiveMigration(ctx)
	if err != nil || !active {
		return append(conds, store.Absent(a.keys.ActiveMigration())), err
	}
	var layouts []allocator.Layout
	if t.Home != "" {
		layouts = append(layouts, m.From)
	}
	for _, move := range m.Moves[m.Reached:] {
		layouts = append(layouts, move.Layout)
	}
	var needs plan.Workers
	AddTag(&needs, t)
	if err := needs.Check(stored.Layout, layouts...); err != nil {
		return nil, allocator.Errorf(allocator.Refused, "migration %s is under way: %w", m.ID, err)
	}
	return append(conds, store.Unchanged(m.KV)), nil
}

// AddTag adds what a tag needs: workers, its home, or nothing.
func AddTag(needs *plan.Workers, t record.Tag) {
	if t.Home != "" {
		needs.AddHome(t.Name, t.Home)
	}
	if t.Time != nil {
		needs.AddTag(t.Name, t.Time.Layout())
	}
}

// unchangedSince refuses a tag that was stored at another revision than the given one, unless
// that is 0. Its error is Conflict.
func unchangedSince(kv store.KV, name allocator.Tag, revision int64) error {
	if revision == 0 || kv.ModRevision == revision {
		return nil
	}
	return allocator.Errorf(allocator.Conflict,
		"tag %s was changed since: it is of revision %d, and if_revision is %d; read it again",
		name, kv.ModRevision, revision)
}

// SkipTag makes rooms lease only IDs from to on, and drop the IDs that they hold
// below it. If no room is named, it is for all rooms, also those that come later (before
// `march cluster upgrade`: all rooms of the current layout). These rooms never issue the
// IDs in between. Its errors are UpdateTag's, and Refused if
// to lies more than max_jump above the tag's largest mark and force is not set.
//
// A skip is a setting of the tag, and writes no marks. It takes effect at once,
// because every lease compares the tag, and it is safe, because a higher base
// always is.
func (a *Admin) SkipTag(ctx context.Context, name allocator.Tag, rooms []allocator.Room, to int64, force bool,
	actor string) (record.Tag, error) {
	stored, err := a.Ledger.Refresh(ctx)
	if err != nil {
		return record.Tag{}, err
	}
	all := len(rooms) == 0 && stored.Upgraded()
	if len(rooms) == 0 {
		rooms = stored.Layout.Rooms()
	}
	for _, room := range rooms {
		if _, ok := stored.Layout.Ranges[room]; !ok {
			return record.Tag{}, allocator.Errorf(allocator.NotFound,
				"room %s has no range in layout version %d; rooms: %v", room,
				stored.Layout.Version, stored.Layout.Rooms())
		}
	}
	marks, err := a.Marks(ctx, name)
	if err != nil {
		return record.Tag{}, err
	}
	return a.UpdateTag(ctx, name, func(s *record.TagSettings) error {
		largest := max(s.Start, s.Skip)
		for _, mark := range marks {
			largest = max(largest, mark.Next)
		}
		switch {
		case to >= s.Limit:
			return allocator.Errorf(allocator.Invalid, "to: %d; allowed: below the tag's limit, %d", to, s.Limit)
		case to-largest > s.MaxJump && !force:
			return allocator.Errorf(allocator.Refused, "to: %d is %d above the tag's largest mark, %d, "+
				"more than max_jump (%d); the IDs in between would never be issued: force it if you want that",
				to, to-largest, largest, s.MaxJump)
		}
		if all {
			s.Skip = max(s.Skip, to)
			return nil
		}
		if s.Skips == nil {
			s.Skips = make(map[allocator.Room]int64, len(rooms))
		}
		for _, room := range rooms {
			s.Skips[room] = max(s.Skips[room], to)
		}
		return nil
	}, actor)
}

// putTag writes a tag under conditions. Its error is Conflict if one does not hold.
func (a *Admin) putTag(ctx context.Context, t record.Tag, conds []store.Cond, action string, was []byte,
	actor string) (record.Tag, error) {
	if err := a.Ledger.Attach(ctx); err != nil {
		return record.Tag{}, err
	}
	t.Nonce = record.RandomHex()
	key, value := a.keys.Tag(t.Name), t.Encode(t.Nonce)
	answer, err := a.Ledger.Change(ctx, store.Txn{
		If:   conds,
		Then: []store.Op{store.OpPut(key, value), a.audit(actor, action, key, was, value)},
	})
	if err == nil && answer.Succeeded {
		return a.keys.DecodeTag(store.KV{Key: key, Value: value, ModRevision: answer.Revision})
	}
	var written record.Tag
	err = store.Outcome(answer, err, func() bool {
		var checkErr error
		written, checkErr = a.Tag(ctx, t.Name)
		return checkErr == nil && written.Nonce == t.Nonce
	}, allocator.Errorf(allocator.Conflict, "tag %s, or what it rests on, was changed by another process just now",
		t.Name))
	if err != nil {
		return record.Tag{}, err
	}
	return written, nil
}

// Tag returns a tag. Its error is NotFound if the tag does not exist.
func (a *view) Tag(ctx context.Context, name allocator.Tag) (record.Tag, error) {
	return readOne(ctx, a, a.keys.Tag(name), a.keys.DecodeTag, ledger.UnknownTag(name))
}

// Tags returns up to n tags whose names begin with prefix and come after the
// name after, in the order of names, and the keys among them that cannot be read.
//
// etcd visits all keys of an interval that it reads, however small the limit is. So Tags
// guesses the end of the interval. shared is the length of the common prefix of the
// names on the page before; 0 if unknown. The next names often begin with the same
// bytes, or with all but the last. The first tags of all end where they ended before.
// A wrong guess does not change the answer.
func (a *view) Tags(ctx context.Context, prefix string, after allocator.Tag,
	shared, n int) (tags []record.Tag, bad []record.KeyError, err error) {
	tags, bad, err = a.tags(ctx, prefix, after, shared, n, a.keys.DecodeTag)
	if last := a.first.Load(); prefix == "" && after == "" && len(tags) == n && (last == nil || last.tags <= n) {
		a.first.Store(&head{n, a.keys.Tag(tags[n-1].Name) + "\x00"})
	}
	return tags, bad, err
}

// FirstTags is EachTagIn for the first n tags by name, which it reads at once: see Tags.
func (a *view) FirstTags(ctx context.Context, n int, rooms []allocator.Room,
	use func(record.Tag, map[allocator.Room]record.Mark) error) error {
	first, _, err := a.Tags(ctx, "", "", 0, n)
	if err == nil && len(first) > 0 {
		_, err = record.Walk{Keys: a.keys, Gets: a.Ledger.Gets}.WithMarks(ctx, rooms, first, use)
	}
	return err
}

// DeletedTags is Tags for the tombstones of deleted tags.
func (a *view) DeletedTags(ctx context.Context, prefix string, after allocator.Tag,
	shared, n int) (tags []record.Tag, bad []record.KeyError, err error) {
	return a.tags(ctx, prefix, after, shared, n, func(kv store.KV) (record.Tag, error) {
		t, err := record.ReadAs[record.Tag](a.keys, kv)
		if err == nil && t.Deleted.IsZero() {
			err = allocator.Errorf(allocator.NotFound, "tag %s is not deleted", t.Name)
		}
		return t, err
	})
}

func (a *view) tags(ctx context.Context, prefix string, after allocator.Tag, shared, n int,
	read func(store.KV) (record.Tag, error)) (tags []record.Tag, bad []record.KeyError, err error) {
	if err := a.Ledger.AttachToRead(ctx); err != nil {
		return nil, nil, err
	}
	within := store.Prefix(a.keys.All(record.Tags) + prefix)
	if after != "" {
		within.Key = max(within.Key, a.keys.Tag(after)+"\x00")
	}
	if within.Key >= within.End {
		return nil, nil, nil
	}
	ends := endsAfter(a.keys.All(record.Tags), prefix, string(after), shared)
	if first := a.first.Load(); first != nil && prefix == "" && after == "" {
		ends = append(ends, first.end)
	}
	for _, end := range append(ends, within.End) {
		page, skipped, err := readPage(ctx, a, store.Get{Interval: store.Interval{Key: within.Key, End: end}},
			n-len(tags), read)
		if err != nil {
			return nil, nil, err
		}
		tags, bad = append(tags, page...), append(bad, skipped...)
		if len(tags) == n {
			break
		}
		within.Key = end
	}
	return tags, bad[:min(len(bad), record.MaxUnreadable)], nil
}

// endsAfter returns guesses for the end of the interval, in their order: see Tags.
// They are within the tags with a prefix.
func endsAfter(tags, prefix, after string, shared int) (ends []string) {
	const levels = 3 // each may cost a call to etcd, if too few tags are found
	if shared < 1 || !strings.HasPrefix(after, prefix) {
		return nil
	}
	first := min(shared+1, len(after))
	for length := first; length > max(len(prefix), first-levels); length-- {
		ends = append(ends, store.PrefixEnd(tags+after[:length]))
	}
	return ends
}

// Marks returns the mark of a tag in each room that ever leased IDs of it.
func (a *view) Marks(ctx context.Context, name allocator.Tag) (map[allocator.Room]record.Mark, error) {
	stored, err := a.Ledger.Refresh(ctx)
	if err != nil {
		return nil, err
	}
	marks, bad, err := a.MarksIn(ctx, stored.Ever, name)
	if err == nil && len(bad) > 0 {
		err = &bad[0]
	}
	return marks, err
}

// MarksIn returns the mark of a tag in each of some rooms that leased IDs of it, and the
// keys of those that cannot be read.
func (a *view) MarksIn(ctx context.Context, rooms []allocator.Room,
	name allocator.Tag) (map[allocator.Room]record.Mark, []record.KeyError, error) {
	ops := make([]store.Op, len(rooms))
	for i, room := range rooms {
		ops[i] = store.OpGet(a.keys.Mark(room, name))
	}
	answer, err := a.Ledger.Gets(ctx, ops...)
	if err != nil {
		return nil, nil, err
	}
	marks := make(map[allocator.Room]record.Mark)
	var bad []record.KeyError
	for i, room := range rooms {
		if kv, ok := answer.One(i); ok {
			mark, err := record.DecodeMark(kv)
			if err != nil {
				bad = append(bad, *record.Unreadable(kv.Key, err))
				continue
			}
			marks[room] = mark
		}
	}
	return marks, bad, nil
}

// tagCount is about how many tags there are. For a count etcd visits all tags. So a
// process counts them at most every recountEvery, and adds those that it creates
// itself. At the bound it counts again after a second, because tags may have been
// deleted.
type tagCount struct {
	sync.Mutex
	tags int64
	at   time.Time // when they were counted
}

// MaxTags is the name of the limit on tags, as the flag and the metrics have it.
const MaxTags = "tags"

const (
	defaultMaxTags = 2_000_000
	recountEvery   = 10 * time.Second
	countFullEvery = time.Second
)

// CountTags returns how many tags there are, those that cannot be read included. etcd
// walks over all keys of tags for that. Its errors are those of ledger.Ledger.Attach, and Unavailable.
func (a *view) CountTags(ctx context.Context) (int64, error) {
	if err := a.Ledger.Attach(ctx); err != nil {
		return 0, err
	}
	within := store.Prefix(a.keys.All(record.Tags))
	answer, err := a.Ledger.Gets(ctx, store.Op{Get: &store.Get{Interval: within, Limit: 1, KeysOnly: true}})
	if err != nil {
		return 0, err
	}
	return answer.Counts[0], nil
}

// MaxTags returns the bound on the tags of the cluster.
func (a *Admin) MaxTags() int64 { return a.cfg.MaxTags }

// mayCreateTag returns TooMany if the cluster has MaxTags tags. Otherwise it counts
// the tag as created.
func (a *Admin) mayCreateTag(ctx context.Context, name allocator.Tag) error {
	c := &a.tagCount
	c.Lock()
	defer c.Unlock()
	every := recountEvery
	if c.tags >= a.cfg.MaxTags {
		every = countFullEvery
	}
	if c.at.IsZero() || time.Since(c.at) >= every {
		tags, err := a.CountTags(ctx)
		if err != nil {
			return err
		}
		c.tags, c.at = tags, time.Now()
	}
	if c.tags >= a.cfg.MaxTags {
		if a.cfg.TooManyTags != nil {
			a.cfg.TooManyTags()
		}
		return fmt.Errorf("tag %s is not created: %w; deleted tags count, too: `march tag list --deleted` lists "+
			"them, and `march tag forget TAG` forgets one", name,
			allocator.OverLimit("tags in the cluster", a.cfg.MaxTags, MaxTags))
	}
	c.tags++
	return nil
}
