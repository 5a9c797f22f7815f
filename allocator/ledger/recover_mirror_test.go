package ledger_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/mirror"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/recovery"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/allocator/timeid"
	"github.com/march-id/march/internal/testcluster/memcluster"
)

// seen is a mirror of a cluster that sees the store when a test says so.
type seen struct {
	*mirror.Mirror
	c    *cluster
	keys record.Keys
}

func (c *cluster) mirror() *seen {
	c.Helper()
	keys, err := record.NewKeys("default")
	if err != nil {
		c.Fatalf("%v", err)
	}
	s := &seen{mirror.New(100), c, keys}
	id, epoch := value[record.Identity](c, "identity"), value[record.Epoch](c, "epoch")
	if err := s.Attach(id, epoch.Epoch, c.Mem.Revision()); err != nil {
		c.Fatalf("%v", err)
	}
	s.look()
	s.BeginView(epoch.Epoch, c.Mem.Revision(), time.Unix(1, 0))
	s.look()
	return s
}

// value returns a stored value.
func value[T any](c *cluster, key string) (v T) {
	c.Helper()
	if err := json.Unmarshal(c.Value(key), &v); err != nil {
		c.Fatalf("%s: %v", key, err)
	}
	return v
}

// look shows the mirror all that the store has.
func (s *seen) look() {
	for _, key := range s.c.Mem.Keys(prefix) {
		value, _ := s.c.Mem.Value(key)
		s.Saw(s.keys, store.KV{Key: key, Value: value, ModRevision: 1}, len(s.Views()) > 0)
	}
	s.Reached(s.c.Mem.Revision(), time.Now().Add(time.Minute)) // after every beat
}

// witness has a recover ask mirrors.
func witness(all ...*seen) func(*recovery.Config) {
	return func(cfg *recovery.Config) {
		for i, s := range all {
			cfg.Witnesses = append(cfg.Witnesses,
				recovery.Witness{Name: fmt.Sprint("m", i+1), Ask: s.Asked, Needed: true})
		}
	}
}

// Recover finds the consoles whose addresses etcd has, asks each once, and does not wait again for one that
// did not answer. The operator may leave out one of them, by the name that recover prints.
func TestRecoverFindsConsoles(t *testing.T) {
	c := newCluster(t, "100 a=0-50 b=50-100")
	a, b := c.start("a"), c.start("b")
	a.Lease(10)
	b.Lease(10)
	for i, address := range []string{"dead:7001", "lives:7001", "lives:7001"} { // one was restarted
		if err := c.Admin.Announce(bg, fmt.Sprintf("01ARZ3NDEKTSV4RRFFQ69G5FA%d", i), address); err != nil {
			t.Fatal(err)
		}
	}
	c.Corrupt("consoles/01ARZ3NDEKTSV4RRFFQ69G5FA9", []byte("garbage"))
	saw := c.mirror()
	found := func(asked map[string]int) func(*recovery.Config) {
		var mu sync.Mutex // they are asked at once
		return func(cfg *recovery.Config) {
			cfg.Console = func(address string) recovery.AskMirror {
				return func(ctx context.Context, q mirror.Question,
					use func(mirror.Part) error) (mirror.Answer, error) {
					mu.Lock()
					defer mu.Unlock()
					asked[address]++
					if address == "dead:7001" {
						return mirror.Answer{}, allocator.Errorf(allocator.Unavailable, "no answer")
					}
					return saw.Asked(ctx, q, use)
				}
			}
		}
	}
	noMirror := func(names ...string) func(*recovery.Config) {
		return func(cfg *recovery.Config) { cfg.NoMirrors = names }
	}
	asked := make(map[string]int)
	_, err := c.recover(c.Mem.Open(), []*process{a}, without(b.id()), found(asked), noMirror("lives:7001"), dry)
	ledgertest.WantKind(t, err, allocator.Refused, "--margin")
	_, err = c.recover(c.Mem.Open(), []*process{a}, without(b.id()), found(asked), noMirror("live:7001"), dry)
	ledgertest.WantKind(t, err, allocator.Invalid, `no-mirror: "live:7001"`)
	if asked["lives:7001"] != 0 {
		t.Errorf("a console that was left out was asked: %v", asked)
	}
	clear(asked)
	report := c.mustRecover([]*process{a}, without(b.id()), found(asked))
	if report.Margin != 2 || len(report.Mirrors) != 2 || report.Mirrors[0].Err == nil ||
		report.Mirrors[1].Name != "lives:7001" || len(report.Mirrors[1].Views) != 1 {
		t.Errorf("margin %d, mirrors %+v", report.Margin, report.Mirrors)
	}
	if asked["dead:7001"] != 1 || asked["lives:7001"] != 2 {
		t.Errorf("asked %v, want the dead one once, and the other before and after the halts", asked)
	}
	clear(asked)
	named := func(cfg *recovery.Config) {
		cfg.Witnesses = []recovery.Witness{{Name: "lives:7001", Ask: saw.Asked, Needed: true}}
	}
	if c.mustRecover([]*process{a}, without(b.id()), margin(0), found(asked), named); asked["lives:7001"] != 0 {
		t.Errorf("a console that the operator named was asked once more: %v", asked)
	}
}

// A recover asks about each lost instance, and no mirror answers for one that it never saw, for
// a time before the backup's last beat, or without a view.
func TestMirrorThatDidNotSeeAll(t *testing.T) {
	c := newCluster(t, "100 a=0-50 b=50-100")
	a := c.start("a")
	a.Lease(10)
	early := c.mirror()
	b := c.start("b")
	b.Lease(10)
	_, err := c.recover(c.Mem.Open(), []*process{a}, without(b.id()), witness(early), dry)
	ledgertest.WantKind(t, err, allocator.Refused, string(b.id()), "--margin")
	blind := &seen{mirror.New(10), c, early.keys}
	blind.Take(mirror.Part{UUID: value[record.Identity](c, "identity").UUID}, true)
	_, err = c.recover(c.Mem.Open(), []*process{a}, without(b.id()), witness(blind), dry)
	ledgertest.WantKind(t, err, allocator.Refused, "--margin")
	early.look()
	if _, err = c.recover(c.Mem.Open(), []*process{a}, witness(early), dry); err == nil ||
		!strings.Contains(err.Error(), "--without "+string(b.id())) {
		t.Errorf("without a word about the lost instance: %v", err)
	}
	if report, err := c.recover(c.Mem.Open(), []*process{a}, without(b.id()), witness(blind, early), dry); err != nil ||
		report.Margin != 2 {
		t.Errorf("one of two mirrors saw all: margin %d, %v", report.Margin, err)
	}
}

// A view saw what was leased after the backup only if it reached the backup's beat, by revision,
// and ended after it, by time. Revisions come again after a restore, and clocks differ. Without a
// beat nothing is known to be after the backup.
func TestViewEndsAfterTheBackup(t *testing.T) {
	c := newCluster(t, "100 a=0-50 b=50-100")
	a, b := c.start("a"), c.start("b")
	a.Lease(10)
	b.Lease(10)
	epoch, beat := value[record.Epoch](c, "epoch"), value[record.Beat](c, "beat")
	low, high := int64(1), c.Mem.Revision()
	early, late := beat.Time.Add(-time.Nanosecond), beat.Time.Add(time.Nanosecond)
	view := func(reach int64, until time.Time) *seen {
		s := &seen{mirror.New(10), c, c.mirror().keys}
		if err := s.Attach(value[record.Identity](c, "identity"), epoch.Epoch, low); err != nil {
			t.Fatal(err)
		}
		for _, key := range c.Mem.Keys(prefix) {
			value, _ := c.Mem.Value(key)
			s.Saw(s.keys, store.KV{Key: key, Value: value, ModRevision: 1}, false)
		}
		s.BeginView(epoch.Epoch, low, time.Unix(1, 0))
		s.Reached(reach, until)
		return s
	}
	for name, test := range map[string]struct {
		saw *seen
		all bool
	}{
		"it reached the beat, and ended before it": {view(high, early), false},
		"it reached the beat, and ended with it":   {view(high, beat.Time), false},
		"it ended later, and did not reach it":     {view(low, late), false},
		"it reached the beat, and ended after it":  {view(high, late), true},
	} {
		_, err := c.recover(c.Mem.Open(), []*process{a}, without(b.id()), witness(test.saw), dry)
		if test.all && err != nil {
			t.Errorf("%s: %v", name, err)
		} else if !test.all && (err == nil || !strings.Contains(err.Error(), "--margin")) {
			t.Errorf("%s: %v, want a margin asked for", name, err)
		}
	}
	saw := view(high, late)
	c.Mem.Corrupt(store.Op{Delete: saw.keys.Beat()})
	_, err := c.recover(c.Mem.Open(), []*process{a}, without(b.id()), witness(saw), dry)
	ledgertest.WantKind(t, err, allocator.Refused, "--margin")
}

// The second answers decide. A mirror that does not answer after the halts is no witness any more:
// of nobody that it saw all that was leased, and of nobody that it left. What it said before still
// raises marks.
func TestMirrorThatFallsSilent(t *testing.T) {
	c := newCluster(t, "100 a=0-50 b=50-100")
	c.Tag("t1", steps(100))
	a, b, gone := c.start("a"), c.start("b"), c.start("b")
	for _, p := range []*process{a, b, gone} {
		if _, err := p.TryLease("t1", 10); err != nil {
			t.Fatal(err)
		}
	}
	backup := c.Mem.Revision()
	for range 5 {
		if _, err := b.TryLease("t1", 100); err != nil {
			t.Fatal(err)
		}
	}
	saw := c.mirror()
	registration := saw.keys.Registration("b", gone.Name())
	text, _ := c.Mem.Value(registration)
	var left record.Registration
	if err := record.Decode(store.KV{Key: registration, Value: text, ModRevision: 1}, &left); err != nil {
		t.Fatal(err)
	}
	left.Leaving = true
	saw.Saw(saw.keys, store.KV{Key: registration, Value: record.Encode(&left), ModRevision: 2}, true)
	saw.Reached(c.Mem.Revision(), time.Now().Add(time.Minute))
	c.Mem.Restore(backup, 0, ledgertest.ClusterID)
	a.hear()
	silent := func(cfg *recovery.Config) {
		asked := 0
		cfg.Witnesses = []recovery.Witness{{Name: "m1", Ask: func(ctx context.Context, q mirror.Question,
			use func(mirror.Part) error) (mirror.Answer, error) {
			if asked++; asked > 1 {
				return mirror.Answer{}, allocator.Errorf(allocator.Unavailable, "the console is gone")
			}
			return saw.Asked(ctx, q, use)
		}}}
	}
	report, err := c.recover(c.Mem.Open(), []*process{a}, without(b.id()), silent)
	ledgertest.WantKind(t, err, allocator.Refused, "--without "+string(gone.id()))
	if len(report.Mirrors) != 1 || report.Mirrors[0].Err == nil || len(report.Mirrors[0].Views) != 0 ||
		!strings.Contains(report.Mirrors[0].Err.Error(), "answered before") {
		t.Errorf("mirrors %+v", report.Mirrors)
	}
	if report.Raised == 0 {
		t.Error("what the mirror said before it fell silent raised nothing")
	}
	report, err = c.recover(c.Mem.Open(), []*process{a}, without(b.id(), gone.id()), silent)
	ledgertest.WantKind(t, err, allocator.Refused, "--margin")
	if report.Epoch != "" || value[record.Epoch](c, "epoch").Halted == nil {
		t.Errorf("epoch %s began, by a mirror that fell silent", report.Epoch)
	}
	c.mustRecover([]*process{a}, without(b.id(), gone.id()), silent,
		func(cfg *recovery.Config) { cfg.Margin = new(int64) })
}

// A mirror of another cluster, or with values above every bound, is refused by name, and nothing
// is changed.
func TestMirrorRefused(t *testing.T) {
	c := newCluster(t, "100 a=0-50 b=50-100")
	c.Tag("small", func(s *record.TagSettings) { s.Limit = 5000 })
	a := c.start("a")
	a.Lease(10)
	uuid := value[record.Identity](c, "identity").UUID
	window := record.Worker{Room: "a", Instance: "i1", Incarnation: "p", From: 1,
		Stamp: record.Stamp{Epoch: "e", Revision: 1}}
	late, long := window, window
	late.Clock = time.Date(2200, 1, 1, 0, 0, 0, 0, time.UTC).UnixMilli()
	late.Until = late.Clock + 1
	rooms := []allocator.Room{"a"}
	beyond := record.Layout{Layout: allocator.Layout{Version: 1 << 61, Boundary: 1,
		Ranges: map[allocator.Room]allocator.Range{"a": {Upper: 1}}}, Ever: rooms}.After(record.Layout{})
	long.Until = 2 * record.LongestWindow.Milliseconds()
	part := func(change func(*mirror.Rest)) mirror.Part {
		rest := &mirror.Rest{}
		change(rest)
		return mirror.Part{UUID: uuid, Rest: rest}
	}
	for name, test := range map[string]struct {
		part mirror.Part
		want string
	}{
		"another cluster": {mirror.Part{UUID: "other"}, "of cluster other"},
		"above the limit": {mirror.Part{UUID: uuid, Marks: &mirror.RoomMarks{Room: "a", Tags: []allocator.Tag{"small"},
			Next: []int64{5001}, Total: []int64{0}}}, "mark a/small is 5001"},
		"above the limit of a tag that the store has not": {mirror.Part{UUID: uuid,
			Marks: &mirror.RoomMarks{Room: "a", Tags: []allocator.Tag{"gone"}, Next: []int64{5001}, Total: []int64{0}},
			Tags: &mirror.TagBounds{Tags: []allocator.Tag{"gone"}, Step: []int64{1}, Limit: []int64{5000},
				Least: []int64{1}, Life: []int{0}, Lives: []string{""}}}, "mark a/gone is 5001"},
		"a skip above the limit": {mirror.Part{UUID: uuid, Tags: &mirror.TagBounds{Tags: []allocator.Tag{"small"},
			Step: []int64{1}, Limit: []int64{5000}, Least: []int64{1}, Life: []int{0}, Lives: []string{""},
			Skips: map[allocator.Tag]map[allocator.Room]int64{"small": {"a": 5001}}}}, "skipped to, 5001"},
		"a start above the limit": {mirror.Part{UUID: uuid, Tags: &mirror.TagBounds{Tags: []allocator.Tag{"small"},
			Step: []int64{1}, Limit: []int64{0}, Least: []int64{5001}, Life: []int{0}, Lives: []string{""}}},
			"tag small starts, or was skipped to, 5001"},
		"a clock in days to come": {mirror.Part{UUID: uuid, Rest: &mirror.Rest{Workers: []record.Lease{{
			WorkerID: record.WorkerID{Bits: 10}, Worker: late}}}}, "window of worker 10/0"},
		"a window without end": {mirror.Part{UUID: uuid, Rest: &mirror.Rest{Workers: []record.Lease{{
			WorkerID: record.WorkerID{Bits: 10}, Worker: long}}}}, "window of worker 10/0"},
		"a machine ID in days to come": {part(func(r *mirror.Rest) {
			r.Machines = []mirror.Machine{{WorkerIn: record.WorkerIn{Room: "a"},
				Machine: record.Machine{Namespace: "n", Instance: "i", Last: late.Clock}}}
		}), "machine ID 0/0 was in use"},
		"a margin beyond all tags": {part(func(r *mirror.Rest) { r.Total = record.MostMargin + 1 }),
			"margin total"},
		"windows not before days to come":  {part(func(r *mirror.Rest) { r.NotBefore = late.Clock }), "not before"},
		"a layout without a version above": {part(func(r *mirror.Rest) { r.Layout = beyond }), "layout version"},
	} {
		m := &seen{Mirror: mirror.New(10), c: c}
		m.Take(test.part, true)
		was := c.Mem.Revision()
		_, err := c.recover(c.Mem.Open(), []*process{a}, witness(m))
		ledgertest.WantKind(t, err, allocator.Refused, "mirror m1", test.want)
		if now := c.Mem.Revision(); now != was {
			t.Errorf("%s: the store was changed", name)
		}
	}
}

// A rehearsal's recover begins an epoch of its own, over a copy in which no instance lives. A mirror that
// followed it afterwards did not see what a lost instance leased meanwhile.
func TestMirrorOfARehearsal(t *testing.T) {
	c := newCluster(t, "100 a=0-50 b=50-100")
	a, b := c.start("a"), c.start("b")
	a.Lease(10)
	b.Lease(10)
	saw := c.mirror()
	backup := c.Mem.Revision()
	epoch := record.Epoch{Epoch: "rehearsed"}
	if err := saw.Attach(value[record.Identity](c, "identity"), epoch.Epoch, backup); err != nil {
		t.Fatal(err)
	}
	saw.Saw(saw.keys, store.KV{Key: saw.keys.Epoch(), Value: record.Encode(&epoch), ModRevision: backup}, false)
	saw.BeginView(epoch.Epoch, backup, time.Now().Add(time.Minute))
	b.Lease(500)
	saw.Reached(c.Mem.Revision(), time.Now().Add(3*time.Minute))
	c.Mem.Restore(backup, 0, ledgertest.ClusterID)
	a.hear()
	_, err := c.recover(c.Mem.Open(), []*process{a}, without(b.id()), witness(saw), dry)
	ledgertest.WantKind(t, err, allocator.Refused, "--margin")

	// In an epoch that a restore forgot the instance lived.
	beat := record.Heartbeat{Incarnation: b.Incarnation(), Time: time.Now().Add(2 * time.Minute)}
	saw.Saw(saw.keys, store.KV{Key: saw.keys.Alive("b", b.Name()), Value: record.Encode(&beat), ModRevision: backup},
		true)
	if report, err := c.recover(c.Mem.Open(), []*process{a}, without(b.id()), witness(saw), dry); err != nil ||
		report.Margin != 2 {
		t.Errorf("margin %d, %v", report.Margin, err)
	}
}

// A process that a mirror saw write that it leaves is not missing. One whose registration only
// went is.
func TestMirrorKnowsWhoLeft(t *testing.T) {
	c := newCluster(t, "100 a=0-50 b=50-100")
	a, b, gone := c.start("a"), c.start("b"), c.start("b")
	for _, p := range []*process{a, b, gone} {
		p.Lease(10)
	}
	saw := c.mirror()
	backup := c.Mem.Revision()
	registration := saw.keys.Registration("b", b.Name())
	value, _ := c.Mem.Value(registration)
	var v record.Registration
	if err := record.Decode(store.KV{Key: registration, Value: value, ModRevision: 1}, &v); err != nil {
		t.Fatal(err)
	}
	v.Leaving = true
	saw.Saw(saw.keys, store.KV{Key: registration, Value: record.Encode(&v), ModRevision: 2}, true)
	saw.Saw(saw.keys, store.KV{Key: saw.keys.Registration("b", gone.Name())}, true)
	saw.Reached(c.Mem.Revision(), time.Now().Add(time.Minute))
	c.Mem.Restore(backup, 0, ledgertest.ClusterID)
	report, err := c.recover(c.Mem.Open(), []*process{a}, witness(saw), dry)
	ledgertest.WantKind(t, err, allocator.Refused, "--without "+string(gone.id()))
	if !slices.Equal(missing(report), []string{string(gone.id())}) ||
		!slices.Equal(report.LeftBefore, []record.InstanceID{b.id()}) {
		t.Errorf("missing %v, left %v", missing(report), report.LeftBefore)
	}
}

// Of an epoch that only mirrors know recover takes what raises: the margin total, the rooms, the
// layout's version. But it is not the epoch that the halt stopped, and its layout's ranges are not
// offered: an instance that answers was not in it.
func TestEpochThatOnlyMirrorsKnow(t *testing.T) {
	c := newCluster(t, "100 a=0-50 b=50-100")
	a := c.start("a")
	a.Lease(10)
	stopped := value[record.Epoch](c, "epoch").Epoch
	saw := c.mirror()
	var later record.Layout
	if err := record.Decode(store.KV{Key: "layout", Value: c.Value("layout"), ModRevision: 1}, &later); err != nil {
		t.Fatal(err)
	}
	later.Layout = ledgertest.Lay(t, "1000 a=0-5 c=50-100")
	later.Layout.Version = 1 << 40
	later.Ever, later.NarrowestRange, later.LargestBoundary = []allocator.Room{"a", "b", "c"}, 5, 1000
	epoch := record.Epoch{Epoch: "later", MarginTotal: 1 << 59, Layout: 1 << 40}
	far := &seen{mirror.New(10), c, saw.keys}
	far.Take(mirror.Part{UUID: value[record.Identity](c, "identity").UUID}, true)
	far.Saw(far.keys, store.KV{Key: far.keys.Epoch(), Value: record.Encode(&epoch), ModRevision: 3}, false)
	if report, err := c.recover(c.Mem.Open(), []*process{a}, witness(far), dry); err != nil ||
		!slices.Equal(report.AtLimit, []allocator.Tag{"t"}) {
		t.Errorf("at their limits by a mirror's margin total: %v, %v", report.AtLimit, err)
	}
	epoch.MarginTotal = 7
	for key, b := range map[string][]byte{saw.keys.Epoch(): record.Encode(&epoch)} {
		saw.Saw(saw.keys, store.KV{Key: key, Value: b, ModRevision: 3}, true)
	}
	saw.Saw(saw.keys, store.KV{Key: saw.keys.Layout(), Value: later.Encode("n"), ModRevision: 3}, true)
	report := c.mustRecover([]*process{a}, witness(saw))
	if report.Total != 7 || report.Layout.Version <= 1<<40 || report.Known.Version >= 1<<40 {
		t.Errorf("total %d, layout %v, known %v", report.Total, report.Layout, report.Known)
	}
	if now := value[record.Epoch](c, "epoch"); now.Ended.Stopped != stopped {
		t.Errorf("it stopped %s, want %s", now.Ended.Stopped, stopped)
	}
	if l := value[record.Layout](c, "layout"); !slices.Contains(l.Ever, "c") || l.LargestBoundary != 1000 ||
		l.NarrowestRange != 5 {
		t.Errorf("layout %+v", l)
	}
	a.hear()
	a.Lease(10)
	c.Check()
}

// Tags that a restore forgot are put back from what a mirror saw, as deleted ones, so that the
// next of their names is no other. A living tag stays, also where the mirror saw it deleted. Tags
// that were forgotten, and clusters of older formats, get nothing back.
func TestMirrorPutsTagsBackAsDeleted(t *testing.T) {
	for formats := 1; formats <= 2; formats++ {
		c := &cluster{memcluster.NewOf(t, "100 a=0-50 b=50-100", formats)}
		timed := record.NewTimeTag(timeid.Layout{TimeBits: 41, WorkerBits: 10, SequenceBits: 12,
			Unit: time.Millisecond})
		a := c.start("a")
		backup := c.Mem.Revision()
		c.Tag("counter", func(s *record.TagSettings) { s.Start, s.MinStep, s.MaxStep = 801, 10, 500 })
		c.Tag("event", func(s *record.TagSettings) { s.Time = &timed })
		c.Tag("typo", steps(10))
		a.Lease(10)
		if _, err := a.TryLease("counter", 10); err != nil {
			t.Fatal(err)
		}
		saw := c.mirror()
		for _, name := range []allocator.Tag{"t", "typo"} { // t has a mark
			if err := c.Admin.DeleteTag(bg, name, "test"); err != nil {
				t.Fatal(err)
			}
			value, _ := c.Mem.Value(prefix + "tags/" + string(name))
			kv := store.KV{Key: prefix + "tags/" + string(name), Value: value}
			if value != nil {
				kv.ModRevision = c.Mem.Revision()
			}
			saw.Saw(saw.keys, kv, true)
		}
		c.Mem.Restore(backup, 0, ledgertest.ClusterID)
		a.hear()
		report := c.mustRecover([]*process{a}, witness(saw))
		c.Admin = manage(ledgertest.Open(t, c.Mem.Open()))
		deleted, bad, err := c.Admin.DeletedTags(bg, "", "", 0, 10)
		if err != nil || len(bad) > 0 || len(c.Value("tags/t")) == 0 {
			t.Fatalf("deleted tags: %v, %v, or the living one went", bad, err)
		}
		if formats == 1 {
			if len(deleted)+len(report.PutBack) != 0 {
				t.Errorf("older formats: deleted %v, put back %v", deleted, report.PutBack)
			}
			continue
		}
		if len(deleted) != 2 || len(report.PutBack) != 2 || deleted[0].Name != "counter" ||
			deleted[0].LargestStep != 500 ||
			deleted[0].Least != 801 || deleted[1].Name != "event" || deleted[1].Time.Layout() != timed.Layout() {
			t.Errorf("deleted %+v, put back %v", deleted, report.PutBack)
		}
		if _, err := c.Admin.Tag(bg, "t"); err != nil {
			t.Errorf("the living tag: %v", err)
		}
		c.Check()
	}
}
