package history

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/allocator/ledger/verify"
	"github.com/march-id/march/allocator/timeid"
)

// History is the content of a history's file.
type History struct {
	Lives    []Life
	Rises    []Rise   // of marks, in order
	Layouts  []Layout // in order
	Epochs   []Epoch
	Reports  []Report
	Windows  []Window                        // of workers, as written, in order
	Strict   map[allocator.Tag]bool          // tags that had strict_retract in every version seen
	Times    map[allocator.Tag]timeid.Layout // tags of time-ordered IDs
	Ordered  map[allocator.Tag]record.StrictOrder
	Ended    int       // migrations that ended, done or aborted
	Problems []Problem // rules that were broken
	More     int       // besides those
}

// Life is the time from an etcd's beginning, or its restore, to the next restore.
type Life struct {
	Why      string
	Cluster  uint64 // etcd's cluster ID
	Began    time.Time
	First    int64     // its first revision seen
	Last     int64     // the last revision with known changes
	Shown    int64     // the highest revision that it showed
	Checked  time.Time // when it was last found to be still this life
	Known    time.Time // all changes until some seconds before are recorded
	Gaps     []Gap
	Doubtful int // changes that may be of this life or the next, and were left out
}

// Gap is revisions with unknown changes: above After, up to To.
type Gap struct{ After, To int64 }

// Rise is a rise of a mark.
type Rise struct {
	Life     int // counted from 0
	Time     time.Time
	Revision int64
	Room     allocator.Room
	Tag      allocator.Tag
	Lease    bool  // false if an operator or a recover raised it
	Was      int64 // next before
	Next     int64
	Floor    int64 // the least ID that a lease may have, by the tag's settings and, if it is known, the floor
	Mark     record.Mark
	Layout   allocator.Layout // of the lease
	NewEra   bool
}

// Least returns the least ID that a lease may have given, and the most IDs that it may have
// given. That is exact for an era's first lease, and for later ones if no skip is in between.
func (s Rise) Least() (least, most int64) {
	from := s.Was
	if s.NewEra {
		from = max(from, s.Mark.Last().First)
	}
	seg, err := s.Layout.Segment(s.Room, from, 1, s.Next)
	if err != nil {
		return s.Next, 0
	}
	return seg.First, s.Layout.CountIDs(s.Layout.Ranges[s.Room], seg.First, s.Next)
}

// Window is a written worker's key: the owner, and the time.
type Window struct {
	Life     int // counted from 0
	Revision int64
	record.Lease
}

// Layout is a layout that came into force.
type Layout struct {
	Life     int
	Time     time.Time
	Revision int64
	record.Layout
}

// Epoch is an epoch, or a halt, that came into force.
type Epoch struct {
	Life int
	Time time.Time
	record.Epoch
}

// Report is an instance's report of its layout: of segments from before the layout of Version
// it issues only those that this layout keeps (History.Keeps). It holds from From, when it was
// seen, to Until.
type Report struct {
	Life        int
	Room        allocator.Room
	Instance    allocator.Instance
	Version     int64
	From, Until time.Time // a zero Until is the end
}

// Problem is a rule that was broken.
type Problem struct {
	Rule     string // constant for each rule
	Life     int
	Revision int64
	Text     string
}

func (p Problem) String() string {
	return fmt.Sprintf("%s: life %d, revision %d: %s", p.Rule, p.Life+1, p.Revision, p.Text)
}

// maxProblems bounds the Problems of a History.
const maxProblems = 1000

// Read replays the history in dir. Its errors are those of the file.
func Read(dir, cluster string) (*History, error) {
	keys, err := record.NewKeys(cluster)
	if err != nil {
		return nil, err
	}
	r := &replay{keys: keys, h: &History{Strict: make(map[allocator.Tag]bool),
		Times:   make(map[allocator.Tag]timeid.Layout),
		Ordered: make(map[allocator.Tag]record.StrictOrder)}, s: ledgertest.NewReplay(keys)}
	if _, err := read(dir, func(l line) error {
		r.take(l)
		return nil
	}); err != nil {
		return nil, err
	}
	if len(r.h.Lives) > 0 {
		r.confirm()
		r.endLife(time.Time{})
	}
	return r.h, nil
}

// Taken returns when, as of some time, residues of a segment were taken from the room that
// leased it; the zero time if the layout then in force keeps the segment.
func (h *History) Taken(room allocator.Room, seg allocator.Segment, asOf time.Time) (since time.Time) {
	leased := false
	for _, l := range h.Layouts {
		leased = leased || l.Layout.Layout.Version >= seg.Version
		switch keeps := l.Layout.Layout.Part(room).Keeps(seg); {
		case l.Time.After(asOf):
			return since
		case keeps:
			since = time.Time{}
		case leased && since.IsZero():
			since = l.Time
		}
	}
	return since
}

// Keeps reports whether a version of the layout, the last one with that number, keeps a segment
// of a room.
func (h *History) Keeps(version int64, room allocator.Room, seg allocator.Segment) bool {
	for _, l := range slices.Backward(h.Layouts) {
		if l.Layout.Layout.Version == version {
			return l.Layout.Layout.Part(room).Keeps(seg)
		}
	}
	return false
}

// replay is a history that is being read.
type replay struct {
	keys    record.Keys
	h       *History
	s       *ledgertest.Replay
	pending []line // changes that are not yet confirmed to be of this life
	checks  []line // checks that showed revisions which are not recorded yet
}

func (r *replay) life() *Life { return &r.h.Lives[len(r.h.Lives)-1] }

// settings notes whether a tag is strict, or ordered, and the layout of a tag of time-ordered IDs.
func (r *replay) settings(e record.Entry) {
	if e.Stored != nil && e.Stored.Time != nil {
		r.h.Times[e.Tag] = e.Stored.Time.Layout()
	}
	if e.Stored != nil {
		was, seen := r.h.Strict[e.Tag]
		r.h.Strict[e.Tag] = e.Stored.StrictRetract && (was || !seen)
		if order := e.Stored.StrictOrder; order != "" {
			r.h.Ordered[e.Tag] = order
		}
	}
}

// problem notes a broken rule.
func (r *replay) problem(rule string, revision int64, format string, args ...any) {
	if len(r.h.Problems) == maxProblems {
		r.h.More++
		return
	}
	r.h.Problems = append(r.h.Problems, Problem{rule, len(r.h.Lives) - 1, revision, fmt.Sprintf(format, args...)})
}

func (r *replay) take(l line) {
	switch l.What {
	case whatLife:
		if len(r.h.Lives) > 0 {
			r.dropDoubtful(l.Revision)
			r.confirm()
			r.endLife(r.life().Checked)
		}
		r.h.Lives = append(r.h.Lives, Life{Why: l.Why, Cluster: l.ClusterID, Began: l.Time, First: l.Revision,
			Last: l.Revision, Shown: l.Revision, Checked: l.Time, Known: l.Time})
		r.s.Restart()
		r.checks = nil
		r.load(l)
	case whatGap:
		r.confirm()
		r.gap(l)
	case whatChanges:
		r.pending = append(r.pending, l)
	case whatChecked:
		r.confirm()
		r.life().Checked = l.Time
		r.life().Shown = max(r.life().Shown, l.Shown)
		r.life().Last = max(r.life().Last, l.Revision)
		r.checks = append(r.checks, l)
	}
	for len(r.checks) > 0 && r.checks[0].Shown <= r.life().Last {
		r.life().Known = r.checks[0].Time
		r.checks = r.checks[1:]
	}
}

// dropDoubtful leaves out pending changes that may belong to a life that begins at a revision: the
// changes up to that revision.
func (r *replay) dropDoubtful(revision int64) {
	kept := r.pending[:0]
	for _, l := range r.pending {
		if slices.ContainsFunc(l.KVs, func(k kv) bool { return k.Revision > 0 && k.Revision <= revision }) {
			r.life().Doubtful += len(l.KVs)
			break // and the changes after it
		}
		kept = append(kept, l)
	}
	for _, l := range r.pending[len(kept):] {
		for _, k := range l.KVs {
			if e, err := r.keys.Entry(k.ledger()); err == nil {
				r.window(k.Revision, e) // a process had it, in one life or the other
			}
		}
	}
	r.pending = kept
}

// window stores the window of a worker.
func (r *replay) window(revision int64, e record.Entry) {
	if e.Lease != nil {
		r.h.Windows = append(r.h.Windows, Window{len(r.h.Lives) - 1, revision, *e.Lease})
	}
}

// confirm applies pending changes, transaction by transaction.
func (r *replay) confirm() {
	for _, l := range r.pending {
		for kvs := l.KVs; len(kvs) > 0; {
			n := 1
			for n < len(kvs) && (kvs[n].Revision == kvs[0].Revision || kvs[n].Revision == 0 ||
				kvs[0].Revision == 0 && kvs[n-1].Revision == 0) {
				n++
			}
			r.transaction(l.Time, kvs[:n])
			kvs = kvs[n:]
		}
	}
	r.pending = nil
}

// endLife ends the reports of a life, and checks its final state as a whole.
func (r *replay) endLife(until time.Time) {
	for i := range r.h.Reports {
		if report := &r.h.Reports[i]; report.Life == len(r.h.Lives)-1 && report.Until.IsZero() {
			report.Until = until
		}
	}
	kvs := r.s.All()
	identity := r.keys.Identity()
	at := slices.IndexFunc(kvs, func(kv store.KV) bool { return kv.Key == identity })
	var id record.Identity
	if at < 0 || record.Decode(kvs[at], &id) != nil {
		return // there was no cluster yet
	}
	etcd := ledgertest.Holding(kvs, r.s.Revision(), id.ClusterID)
	cluster := &record.Cluster{Store: etcd, Keys: r.keys, TryTimeout: time.Minute}
	report, err := verify.Run(context.Background(), cluster, verify.Options{})
	if err != nil {
		r.problem("whole", r.s.Revision(), "%v", err)
	}
	for _, problem := range report.Problems {
		r.problem("whole", r.s.Revision(), "%s", problem)
	}
}
