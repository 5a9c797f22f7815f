package admin_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/admin"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/allocator/ledger/verify"
	"github.com/march-id/march/internal/testcluster/memcluster"
)

const keys, audits, refused = record.Keys(prefix), prefix + "audit/", prefix + "refusals/"

// audited is a cluster with a process whose entries of the audit are known outside etcd, too.
type audited struct {
	*memcluster.Cluster
	t     *testing.T
	admin *admin.Admin
	mu    sync.Mutex
	heads []verify.Head
}

func newAudited(t *testing.T) *audited {
	t.Helper()
	a := &audited{Cluster: memcluster.New(t, "10 a=0-5 b=5-10"), t: t}
	a.over(a.Mem.Open())
	return a
}

// over has the process use a connection.
func (a *audited) over(etcd store.Store) {
	a.t.Helper()
	cfg := ledger.DefaultConfig()
	cfg.Audited = func(key string, e *record.AuditEntry, written bool) {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.heads = append(a.heads, verify.Head{Key: strings.TrimPrefix(key, prefix), Hash: e.Hash, Writer: e.Writer,
			Sequence: e.Sequence, Unknown: !written})
	}
	l, err := ledger.New(etcd, cfg)
	if err != nil {
		a.t.Fatal(err)
	}
	a.t.Cleanup(func() { _ = l.Close() })
	a.admin = admin.New(l, admin.Config{})
}

// works makes changes, some of them at the same time and some refused, and records refused calls.
func (a *audited) works() {
	a.t.Helper()
	for k := range 10 {
		tag := allocator.Tag(fmt.Sprint("tag-", k))
		if _, err := a.admin.CreateTag(bg, tag, record.DefaultTag(), "ann"); err != nil {
			a.t.Fatal(err)
		}
		if err := a.admin.Record(bg, "bob", "refused DeleteTag", "tags/order"); err != nil {
			a.t.Fatal(err)
		}
	}
	var all sync.WaitGroup
	for k := range 20 {
		all.Go(func() {
			_, _ = a.admin.CreateTag(bg, allocator.Tag(fmt.Sprint("both-", k/2)), record.DefaultTag(), "ann")
		})
	}
	all.Wait()
	for k := range 10 {
		if err := a.admin.DeleteTag(bg, allocator.Tag(fmt.Sprint("tag-", k)), "ann"); err != nil {
			a.t.Fatal(err)
		}
	}
}

func (a *audited) verify(heads []verify.Head) verify.AuditReport {
	a.t.Helper()
	r, err := verify.Audit(bg, a.admin.Ledger.Cluster(), heads, verify.Options{})
	if err != nil {
		a.t.Fatal(err)
	}
	return r
}

// written returns the entries of the process in a ring, in the order of their numbers.
func (a *audited) written(ring string) (all []record.AuditEntry) {
	a.t.Helper()
	for _, key := range a.Mem.Keys(ring) {
		value, _ := a.Mem.Value(key)
		e, err := record.ReadAs[record.AuditEntry](keys, store.KV{Key: key, Value: value})
		if err != nil {
			a.t.Fatal(err)
		}
		if slices.ContainsFunc(a.heads, func(h verify.Head) bool { return h.Writer == e.Writer }) {
			all = append(all, e)
		}
	}
	slices.SortFunc(all, func(x, y record.AuditEntry) int { return int(x.Sequence - y.Sequence) })
	return all
}

func (a *audited) put(ring string, e record.AuditEntry) {
	a.Mem.Corrupt(store.OpPut(ring+e.ID, record.Encode(&e)))
}

// An audit that nobody touched has no problems, whatever was written at the same time; each ring is a chain of its own.
func TestAuditIsChained(t *testing.T) {
	a := newAudited(t)
	a.works()
	for _, heads := range [][]verify.Head{nil, a.heads} {
		r := a.verify(heads)
		if len(r.Problems) > 0 || r.Refusals != 10 || r.Changes < 30 || r.Unchained != 0 {
			t.Errorf("%+v", r)
		}
		if covered := r.Writers - r.Uncovered; covered != int64(min(len(heads), 2)) {
			t.Errorf("%d of %d writers are covered", covered, r.Writers)
		}
	}
	named := map[string]bool{}
	changes := a.written(audits)
	for _, e := range changes {
		for id := range e.After {
			named[id] = true
		}
		if len(e.After) > 4 {
			t.Errorf("an entry names %d", len(e.After))
		}
	}
	if n := len(changes) - len(named); n > 3 {
		t.Errorf("%d of %d entries are named by none", n, len(changes))
	}
}

// An outcome that is not known breaks no chain, whether the entry was written or not.
func TestAuditWithoutAnAnswer(t *testing.T) {
	for _, fate := range []ledgertest.FateName{ledgertest.NotDone, ledgertest.DoneAnswerLost} {
		a := newAudited(t)
		conn := a.Mem.Open()
		n := 0
		conn.Fate(func(txn store.Txn) ledgertest.Fate {
			for _, op := range txn.Then {
				if op.Put != nil && strings.HasPrefix(op.Put.Key, audits) {
					if n++; n%3 == 0 {
						return ledgertest.Fate{Name: fate}
					}
				}
			}
			return ledgertest.Fate{}
		})
		a.over(conn)
		for k := range 12 {
			_, _ = a.admin.CreateTag(bg, allocator.Tag(fmt.Sprint("tag-", k)), record.DefaultTag(), "ann")
		}
		if r := a.verify(a.heads); len(r.Problems) > 0 || r.Heads != 12 {
			t.Errorf("%v: %+v", fate, r)
		}
	}
}

// Whoever writes etcd, and removes, changes, adds or rewrites entries, is found out: what the chain shows by itself
// without a log from outside, and a full rewrite with one.
func TestAuditThatWasRewritten(t *testing.T) {
	for name, test := range map[string]struct {
		attack func(a *audited)
		alone  bool // seen without a log
		want   string
	}{
		"an entry removed": {func(a *audited) {
			e := a.written(audits)[5]
			a.Mem.Corrupt(store.Op{Delete: audits + e.ID})
		}, true, "is missing"},
		"a refusal removed": {func(a *audited) {
			e := a.written(refused)[5]
			a.Mem.Corrupt(store.Op{Delete: refused + e.ID})
		}, true, "is missing"},
		"an actor changed": {func(a *audited) {
			e := a.written(audits)[5]
			e.Actor = "somebody else"
			a.put(audits, e)
		}, true, "was changed"},
		"an entry unchained": {func(a *audited) {
			e := a.written(audits)[5]
			e.Writer, e.Sequence, e.After = "", 0, nil
			a.put(audits, e)
		}, true, "was changed"},
		"an entry added": {func(a *audited) {
			e := a.written(audits)[5]
			e.ID, e.Actor = record.NewULID(), "bob"
			a.put(audits, e)
		}, true, "are both number"},
		"the latest removed": {func(a *audited) {
			all := a.written(audits)
			a.Mem.Corrupt(store.Op{Delete: audits + all[len(all)-1].ID})
		}, false, "is missing"},
		"the oldest removed": {func(a *audited) {
			for _, e := range a.written(audits)[:5] {
				a.Mem.Corrupt(store.Op{Delete: audits + e.ID})
			}
		}, true, "is missing"},
		"the second half removed": {func(a *audited) {
			all := a.written(audits)
			for _, e := range all[len(all)/2:] {
				a.Mem.Corrupt(store.Op{Delete: audits + e.ID})
			}
		}, false, "is missing"},
		"an old entry copied": {func(a *audited) {
			e := a.written(audits)[5]
			e.ID = record.NewULID()
			a.put(audits, e)
		}, true, "are both number"},
		"a change moved to the refusals": {func(a *audited) {
			e := a.written(audits)[5]
			a.Mem.Corrupt(store.Op{Delete: audits + e.ID})
			a.put(refused, e)
		}, true, "is missing"},
		"two entries swapped": {func(a *audited) {
			all := a.written(audits)
			all[5].ID, all[6].ID = all[6].ID, all[5].ID
			a.put(audits, all[5])
			a.put(audits, all[6])
		}, true, "was changed"},
		"two writers swapped": {func(a *audited) {
			changes, refusals := a.written(audits), a.written(refused)
			for k := range refusals {
				refusals[k].Writer, changes[k].Writer = changes[k].Writer, refusals[k].Writer
				a.put(audits, changes[k])
				a.put(refused, refusals[k])
			}
		}, true, "was changed"},
		"all as another writer's": {func(a *audited) {
			hashes := map[string]string{}
			for _, e := range a.written(audits) {
				e.Writer, e.Actor = "mallory's", "bob"
				for id := range e.After {
					e.After[id] = hashes[id]
				}
				hashes[e.ID] = record.HashOf(record.Encode(&e))
				a.put(audits, e)
			}
		}, false, "was changed"},
		"the oldest removed, with a note": {func(a *audited) {
			all := a.written(audits)
			for _, e := range all[:5] {
				a.Mem.Corrupt(store.Op{Delete: audits + e.ID})
			}
			a.Mem.Corrupt(store.OpPut(keys.Oldest(audits), record.Encode(&record.Oldest{Removed: all[4].ID,
				ID: all[5].ID, Hash: all[5].Hash})))
		}, true, "because the ring was full"},
		"all rewritten without one": {func(a *audited) {
			hashes := map[string]string{}
			for k, e := range a.written(audits) {
				if k == 5 {
					a.Mem.Corrupt(store.Op{Delete: audits + e.ID})
					continue
				}
				for id := range e.After {
					if e.After[id] = hashes[id]; hashes[id] == "" {
						delete(e.After, id)
					}
				}
				hashes[e.ID] = record.HashOf(record.Encode(&e))
				a.put(audits, e)
			}
		}, false, "is missing"},
		"all rewritten with another one": {func(a *audited) {
			ids, hashes := map[string]string{}, map[string]string{}
			for k, e := range a.written(audits) {
				was, after := e.ID, map[string]string{}
				for id := range e.After {
					after[ids[id]] = hashes[id]
				}
				if e.After = after; k == 5 {
					a.Mem.Corrupt(store.Op{Delete: audits + e.ID})
					e.ID, e.Actor = record.NewULID(), "bob"
				}
				ids[was], hashes[was] = e.ID, record.HashOf(record.Encode(&e))
				a.put(audits, e)
			}
		}, false, "not in the log"},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAudited(t)
			a.works()
			test.attack(a)
			if r := a.verify(nil); (len(r.Problems) > 0) != test.alone {
				t.Errorf("without a log: %q", r.Problems)
			}
			r := a.verify(a.heads)
			if !strings.Contains(strings.Join(r.Problems, "\n"), test.want) {
				t.Errorf("with a log: %q, want one that %s", r.Problems, test.want)
			}
		})
	}
}

// What a writer wrote after the last head of the logs is as unprotected as without logs: how much that is, the report
// says. So a log that was cut, or is old, covers no rewrite that begins where it ends.
func TestAuditBeyondItsLogs(t *testing.T) {
	a := newAudited(t)
	a.works()
	r := a.verify(a.heads)
	others := r.Unlogged // another process made the first layout
	if r.Uncovered != 1 || others != r.Changes+r.Refusals-r.Heads {
		t.Errorf("%+v", r)
	}
	changes := a.written(audits)
	half := len(changes) / 2
	logged := slices.DeleteFunc(slices.Clone(a.heads), func(h verify.Head) bool {
		return h.Writer == changes[0].Writer && h.Sequence > changes[half].Sequence
	})
	hashes := map[string]string{}
	for k, e := range changes {
		if k > half {
			e.Actor = "bob"
			for id := range e.After {
				if hashes[id] != "" {
					e.After[id] = hashes[id]
				}
			}
			hashes[e.ID] = record.HashOf(record.Encode(&e))
			a.put(audits, e)
		}
	}
	if r, after := a.verify(logged), int64(len(changes)-half-1); len(r.Problems) > 0 || r.Unlogged != others+after {
		t.Errorf("%d entries after the log's end: %+v", after, r)
	}
}
