package mirror_test

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/mirror"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
)

var keys = func() record.Keys {
	k, err := record.NewKeys("default")
	if err != nil {
		panic(err)
	}
	return k
}()

func alone(do func()) { do() }

// markKV is a mark of a room as a store shows it.
func markKV(room, tag string, next, total int64) store.KV {
	m := record.Mark{Next: next, Total: total, Stamp: record.Stamp{Epoch: "e", Revision: 1},
		Eras: []record.Era{{Version: 1, Epoch: "e", First: 0, End: next}}}
	return store.KV{Key: keys.Mark(allocator.Room(room), allocator.Tag(tag)), Value: m.Encode(), ModRevision: 1}
}

func registrationKV(incarnation string, leaving bool) store.KV {
	v := record.Registration{Incarnation: incarnation, Address: "a:1", Hold: "1s", Leaving: leaving}
	return store.KV{Key: keys.Registration("a", "i1"), Value: record.Encode(&v), ModRevision: 1}
}

func epochKV(id string, total int64) store.KV {
	v := record.Epoch{Epoch: id, MarginTotal: total}
	return store.KV{Key: keys.Epoch(), Value: record.Encode(&v), ModRevision: 1}
}

// attached returns a mirror of a cluster.
func attached(t interface{ Fatal(...any) }, tags int) *mirror.Mirror {
	m := mirror.New(tags)
	if err := m.Attach(record.Identity{UUID: "u1", ClusterID: 7}, "e", 1); err != nil {
		t.Fatal(err)
	}
	return m
}

// parts returns what a mirror reports after a tick.
func parts(m *mirror.Mirror, after uint32) []mirror.Part {
	return slices.Collect(m.Since(after, alone))
}

// rest returns what a mirror reports besides tags and marks.
func rest(m *mirror.Mirror) *mirror.Rest {
	all := parts(m, 0)
	return all[len(all)-1].Rest
}

// Whatever histories a mirror sees, in whatever order, each of its numbers is the largest that
// any of them showed. So it is after its file was read again at any time, and for another
// mirror that takes its parts, all at once or as they change.
func TestMirrorNeverFalls(t *testing.T) {
	dir := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		path := filepath.Join(dir, rapid.StringMatching("[a-z]{12}").Draw(t, "file"))
		m := attached(t, 100)
		f, err := mirror.OpenFile(path, m)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = f.Close() }()
		type at struct{ room, tag string }
		next, total := make(map[at]int64), make(map[at]int64)
		other, after := mirror.New(100), uint32(0)
		check := func(what string, m *mirror.Mirror) {
			for a := range next {
				if n, tot := m.Mark(allocator.Room(a.room), allocator.Tag(a.tag)); n != next[a] || tot != total[a] {
					t.Fatalf("%s: %v is %d with total %d, want %d, %d", what, a, n, tot, next[a], total[a])
				}
			}
		}
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			switch rapid.IntRange(0, 4).Draw(t, "step") {
			case 0:
				if err := f.Sync(m, alone); err != nil {
					t.Fatal(err)
				}
				read, err := mirror.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				check("read again", read)
			case 1:
				now := m.Turn()
				for _, p := range parts(m, after) {
					if err := p.Validate(); err != nil {
						t.Fatal(err)
					}
					other.Take(p, false)
				}
				after = now
				check("another mirror", other)
			default:
				a := at{rapid.SampledFrom([]string{"a", "b"}).Draw(t, "room"),
					rapid.SampledFrom([]string{"x", "y", "z"}).Draw(t, "tag")}
				n, tot := rapid.Int64Range(1, 50).Draw(t, "next"), rapid.Int64Range(0, 5).Draw(t, "total")
				m.Saw(keys, markKV(a.room, a.tag, n, tot), rapid.Bool().Draw(t, "whole"))
				next[a], total[a] = max(next[a], n), max(total[a], tot)
			}
			check("the mirror", m)
		}
	})
}

// A process has left only if the mirror saw it write so after it had read all marks. A
// registration that only went says nothing.
func TestOnlyAWrittenLeaveCounts(t *testing.T) {
	gone := store.KV{Key: keys.Registration("a", "i1")}
	for name, test := range map[string]struct {
		saw  []store.KV
		read int // how many of these came before all was read
		left bool
	}{
		"it wrote so": {[]store.KV{registrationKV("p", false), registrationKV("p", true), gone}, 1,
			true},
		"it vanished":                 {[]store.KV{registrationKV("p", false), gone}, 1, false},
		"it was replaced":             {[]store.KV{registrationKV("p", false), registrationKV("q", false)}, 1, false},
		"not all had been read":       {[]store.KV{registrationKV("p", true), gone}, 1, false},
		"it left, and a restore came": {[]store.KV{registrationKV("p", true), registrationKV("p", false)}, 0, true},
	} {
		m := attached(t, 10)
		m.BeginView("e", 1, time.Unix(1, 0))
		for i, kv := range test.saw {
			m.Saw(keys, kv, i >= test.read)
		}
		m.Reached(1, time.Unix(2, 0))
		all := rest(m).Processes
		at := slices.IndexFunc(all, func(p mirror.Process) bool { return p.Incarnation == "p" })
		if at < 0 || all[at].Left != test.left {
			t.Errorf("%s: %+v", name, all)
		}
	}
}

// No view sees a recover take away the registrations that it went on without: none begins while leasing
// is halted. So the view after it knows by its epoch. In the same epoch a restore may have taken them.
func TestRecoverBetweenTwoViews(t *testing.T) {
	for epoch, vanished := range map[string]bool{"later": true, "e": false} {
		m := attached(t, 10)
		m.Saw(keys, registrationKV("p", false), false)
		m.BeginView("e", 1, time.Unix(1, 0))
		m.Reached(5, time.Unix(2, 0))
		if err := m.Attach(record.Identity{UUID: "u1", ClusterID: 7}, epoch, 9); err != nil {
			t.Fatal(err)
		}
		m.BeginView(epoch, 9, time.Unix(3, 0))
		if p := rest(m).Processes[0]; p.Vanished != vanished || p.Left {
			t.Errorf("epoch %s: %+v", epoch, p)
		}
	}
}

// That a process left, and which epoch a view is of, permit something. So they count once a later
// read came over the view's connection, and not if that broke before: the client may have resumed
// the watch in another history.
func TestWhatPermitsIsConfirmed(t *testing.T) {
	for name, confirm := range map[string]bool{"a read confirmed it": true, "the connection broke": false} {
		m := attached(t, 10)
		m.BeginView("e", 1, time.Unix(1, 0))
		m.Saw(keys, registrationKV("p", true), true)
		m.Saw(keys, epochKV("later", 5), true)
		if r := rest(m); r.Processes[0].Left || r.Views[0].Epoch != "e" || r.Total != 5 {
			t.Errorf("%s: it counts at once, or does not raise: %+v", name, r)
		}
		if !confirm {
			m.BeginView("e", 1, time.Unix(2, 0))
		}
		m.Reached(1, time.Unix(3, 0))
		r := rest(m)
		if last := r.Views[len(r.Views)-1]; r.Processes[0].Left != confirm || (last.Epoch == "later") != confirm ||
			r.Views[0].Epoch != last.Epoch && confirm {
			t.Errorf("%s: %+v", name, r)
		}
	}
}

// A mirror takes from a store only under its identity. Another etcd cluster is the same cluster
// only with an epoch that the mirror never saw, and in one epoch revisions only grow.
func TestMirrorTakesFromItsOwnClusterOnly(t *testing.T) {
	m := attached(t, 10)
	m.Saw(keys, epochKV("e", 0), true)
	m.BeginView("e", 5, time.Unix(1, 0))
	m.Reached(9, time.Unix(2, 0))
	for _, test := range []struct {
		uuid     string
		id       uint64
		epoch    string
		revision int64
		want     string
	}{
		{"u2", 7, "e", 9, "cluster u2"},
		{"u1", 8, "e", 9, "etcd cluster 8"},
		{"u1", 7, "e", 8, "went back in time"}, // a restore that no process saw: what it lost, the view would not have
		{"u1", 7, "e", 9, ""},
		{"u1", 7, "e2", 1, ""},
		{"u1", 8, "e2", 1, ""},
	} {
		err := m.Attach(record.Identity{UUID: test.uuid, ClusterID: test.id}, test.epoch, test.revision)
		if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%+v: %v", test, err)
		}
	}
}

// A mirror without room for all tags has nothing, rather than some.
func TestMirrorWithoutRoom(t *testing.T) {
	m := attached(t, 2)
	m.BeginView("e", 1, time.Unix(1, 0))
	for i := range 3 {
		m.Saw(keys, markKV("a", fmt.Sprint("t", i), 5, 0), true)
	}
	if next, _ := m.Mark("a", "t0"); !m.Full() || next != 0 || m.Tags() != 0 || len(m.Views()) != 0 {
		t.Errorf("full %v, mark %d, %d tags, views %v", m.Full(), next, m.Tags(), m.Views())
	}
}

// A file that is cut, damaged, of another cluster or contradicts itself is refused by name, and
// stays as it is. What a crash left behind after the last sync is left out.
func TestFileRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "m")
	m := attached(t, 10)
	m.Saw(keys, epochKV("e", 3), true)
	f, err := mirror.OpenFile(path, m)
	if err != nil {
		t.Fatal(err)
	}
	for next := range int64(3) {
		m.Saw(keys, markKV("a", "x", 10+next, 2), true)
		if err := f.Sync(m, alone); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := mirror.OpenFile(path, mirror.New(10)); err == nil ||
		!strings.Contains(err.Error(), "another process") {
		t.Errorf("opened twice: %v", err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.SplitAfter(string(good), "\n")
	for name, test := range map[string]struct{ content, want string }{
		"as it is":          {string(good), ""},
		"torn by a crash":   {string(good) + "0123abcd {\"numb", ""},
		"empty":             {"", "cut"},
		"cut in the head":   {string(good[:20]), "cut"},
		"cut in a line":     {string(good[:len(good)-9]), "cut"},
		"cut between lines": {strings.Join(lines[:len(lines)-2], ""), "cut"},
		"a line is missing": {mirror.Sealed(append(slices.Clone(lines[1:2]), lines[3:]...)), "lines are missing"},
		"no end":            {mirror.Sealed(lines[1:2]), "no end"},
		"a byte is changed": {strings.Replace(string(good), `"x"`, `"y"`, 1), "checksum"},
		"not a mirror":      {strings.Repeat("hello\n", 20), "no mirror"},
		"a mark falls":      {mirror.Lines(marksPart("u1", 9, 0), marksPart("u1", 5, 0)), "mark a/x falls from 9 to 5"},
		"another cluster":   {mirror.Lines(marksPart("u1", 9, 0), marksPart("u2", 9, 0)), `cluster "u2" after "u1"`},
		"total above all": {mirror.Lines(marksPart("u1", 9, 4), mirror.Part{UUID: "u1", Rest: &mirror.Rest{}}),
			"margin total 4"},
		"a bad name":      {mirror.Lines(mirror.Part{UUID: "u1", Marks: &mirror.RoomMarks{Room: "A B"}}), "line 1"},
		"a negative mark": {mirror.Lines(marksPart("u1", -1, 0)), "next -1"},
	} {
		if err := os.WriteFile(path, []byte(test.content), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := mirror.ReadFile(path)
		if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) ||
			err != nil && !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v, want %q", name, err, test.want)
		}
		opened, openErr := mirror.OpenFile(path, mirror.New(10))
		if (openErr == nil) != (err == nil) {
			t.Errorf("%s: opened: %v", name, openErr)
		}
		if openErr == nil {
			_ = opened.Close()
		}
		if now, _ := os.ReadFile(path); string(now) != test.content {
			t.Errorf("%s: the file was changed", name)
		}
	}
}

func marksPart(uuid string, next, total int64) mirror.Part {
	return mirror.Part{UUID: uuid, Marks: &mirror.RoomMarks{Room: "a", Tags: []allocator.Tag{"x"},
		Next: []int64{next}, Total: []int64{total}}}
}

// BenchmarkMirror measures a mirror of a million tags in three rooms: bytes in memory and on
// disk, and how long it takes to write the file and to read it.
func BenchmarkMirror(b *testing.B) {
	const tags = 1_000_000
	for b.Loop() {
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		m := attached(b, tags)
		for i := range tags {
			for _, room := range []string{"a", "b", "c"} {
				m.Saw(keys, markKV(room, fmt.Sprintf("tag-%07d", i), int64(i)+1_000_000_000, 3), true)
			}
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/tags, "B/tag")
		path := filepath.Join(b.TempDir(), "m")
		f, err := mirror.OpenFile(path, mirror.New(tags))
		if err != nil {
			b.Fatal(err)
		}
		began := time.Now()
		if err := f.Sync(m, alone); err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(time.Since(began).Seconds(), "s/write")
		info, err := os.Stat(path)
		if err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(float64(info.Size())/tags, "disk-B/tag")
		began = time.Now()
		if _, err := mirror.ReadFile(path); err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(time.Since(began).Seconds(), "s/read")
		_ = f.Close()
	}
}

// A limit was lowered below a mark before the mirror began, or a recover raised a mark above the
// limit that a backup has. Either is what etcd shows, and no reason to refuse the mirror.
func TestMarkAboveLimit(t *testing.T) {
	tag := record.Tag{Name: "x", TagSettings: record.DefaultTag()}
	tag.Limit = 100
	limited := store.KV{Key: keys.Tag("x"), Value: tag.Encode("n"), ModRevision: 1}
	for _, order := range [][]store.KV{
		{limited, markKV("a", "x", 150, 1)},
		{markKV("a", "x", 150, 1), limited},
		{markKV("a", "x", 150, 1), limited, markKV("b", "x", 120, 1)},
	} {
		m := attached(t, 10)
		for _, kv := range order {
			m.Saw(keys, kv, false)
		}
		var limits []int64
		for _, p := range parts(m, 0) {
			if p.Tags != nil {
				limits = append(limits, p.Tags.Limit...)
			}
		}
		if !slices.Equal(limits, []int64{150}) {
			t.Errorf("after %d keys the limits are %v, want 150", len(order), limits)
		}
	}
}
