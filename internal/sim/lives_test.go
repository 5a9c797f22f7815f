package sim_test

import (
	"context"
	"encoding/json"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/admin"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/recovery"
	"github.com/march-id/march/allocator/ledger/store"
)

// identityRecord has the fields of the identity that are read here.
type identityRecord struct {
	ClusterID uint64 `json:"etcd_cluster_id,string"`
}

// pinned returns the ID of the etcd cluster that the cluster lives in.
func (w *world) pinned() uint64 { return stored[identityRecord](w, "identity").ClusterID }

// answers returns the ID of the etcd cluster that answers.
func (w *world) answers() uint64 {
	answer, err := w.mem.Open().Txn(context.Background(), store.Txn{})
	if err != nil {
		w.Errorf("an etcd without faults: %v", err)
	}
	return answer.ClusterID
}

// moved reports whether another etcd cluster answers than the one that the cluster lives in.
func (w *world) moved() bool { return w.answers() != w.pinned() }

// lives is the etcd cluster that a process takes for the home of its cluster. Each process has
// its own: one that was cut off during a recover still assumes the earlier home. No restore
// back to that, and no recover that it has yet to see, changes it.
type lives struct {
	in    uint64          // 0 before the first answer
	under map[string]bool // the epochs under which the process, or its journal, was there
}

// learn reads the home of the cluster from an answer. A process lives where it first found its
// cluster. It moves only when it asks for identity and epoch alone, as it does after an answer
// of another etcd cluster, and the identity names that cluster under an epoch that the process
// has never seen.
func (l *lives) learn(txn store.Txn, answer store.Answer) {
	gets := txn.Then
	if !answer.Succeeded {
		gets = txn.Else
	}
	var id identityRecord
	var e struct{ Epoch string } // empty while leasing is halted
	named := find(gets, answer, "identity", &id) && id.ClusterID == answer.ClusterID
	find(gets, answer, "epoch", &e)
	if named && (l.in == 0 || len(gets) == 2 && e.Epoch != "" && !l.under[e.Epoch]) {
		l.in = id.ClusterID
	}
	if answer.ClusterID == l.in && e.Epoch != "" {
		l.under[e.Epoch] = true
	}
}

// find reads a key from an answer. It reports whether the request, with nothing but gets, asked
// for the key, and the key exists.
func find(gets []store.Op, answer store.Answer, key string, v any) bool {
	at := slices.IndexFunc(gets, func(op store.Op) bool { return op.Get != nil && op.Get.Key == "/march/default/"+key })
	return at >= 0 && len(answer.Got) == len(gets) && len(answer.Got[at]) > 0 &&
		json.Unmarshal(answer.Got[at][0].Value, v) == nil
}

// remembers makes a process know the epochs of its journal.
func (l *link) remembers(journals []record.Memory) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, m := range journals {
		for _, epoch := range m.Epochs {
			l.mu.lives.under[epoch] = true
		}
	}
}

// livesIn returns the etcd cluster that a process lives in.
func (l *link) livesIn() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.lives.in
}

// TestLives cuts an instance off while etcd goes back to before the cluster moved, an operator
// recovers there, and etcd goes back to before that as well. The instance then lives in the
// earlier etcd cluster, and does not register: the operator must not wait for it, though only
// the instance itself knows that. At each step the simulation's model of the instance matches
// the instance.
func TestLives(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(1, nil, "", nil)
		w.fates, w.slow, w.journals = nil, 0, ""
		w.admin = admin.New(w.fresh(), admin.DefaultConfig())
		if _, err := w.admin.Init(t.Context(), w.first.layout(w.rooms), "simulation"); err != nil {
			t.Fatal(err)
		}
		const first, other = ledgertest.ClusterID, ledgertest.ClusterID + 2
		backup := w.mem.Revision()
		p := &process{id: "a1", link: w.link("a1", w.lane()), address: "192.0.2.1:1", gone: make(chan struct{})}
		serving := make(chan struct{})
		close(serving)
		p.serving = serving
		w.mu.processes = []*process{p}
		i, err := w.ledger(p.link).Join(t.Context(), ledger.Registration{Room: "a", Name: "a1",
			Address: p.address, Hold: time.Second})
		if err != nil {
			t.Fatal(err)
		}
		running, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- i.Run(running) }()
		expect := func(when string, lives uint64, registered bool) {
			t.Helper()
			w.sleep(nil, calm, 0)
			if got := p.link.mu.lives.in; got != lives {
				t.Errorf("%s: it lives in %x, not in %x", when, got, lives)
			}
			if _, got := w.mem.Value("/march/default/rooms/a/a1"); got != registered {
				t.Errorf("%s: it is registered: %v", when, got)
			}
			w.healed.Store(true)
			defer w.healed.Store(false)
			r := &recovering{w: w, d: w.dice(when), link: w.link("recover", w.lane())}
			if err := r.decide(&recovery.Config{}, &recovery.Report{}); (err != nil) != registered {
				t.Errorf("%s: who recovers waits for it, or goes on without: %v", when, err)
			}
		}
		expect("at first", first, true)
		w.mem.Restore(backup, 0, other)
		expect("restored into another etcd cluster", first, false)
		recoverNow(t, w)
		expect("recovered there", other, true)
		p.link.stall(calm)
		w.mem.Restore(backup, 0, first)
		recoverNow(t, w)
		w.mem.Restore(backup, 0, first)
		w.halt(w.first)
		w.sleep(nil, calm, 0)
		expect("restored twice while it was cut off", other, false)
		recoverNow(t, w)
		expect("recovered once more", first, true)
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		for _, problem := range w.mu.problems {
			t.Error(problem)
		}
	})
}

// recoverNow recovers without asking any instance.
func recoverNow(t *testing.T, w *world) {
	t.Helper()
	_, err := recovery.Run(t.Context(), w.fresh(), recovery.Config{Actor: "simulation", Apply: true})
	if err != nil {
		t.Fatal(err)
	}
}
