package report_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"go.uber.org/goleak"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/admin"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/cmd/chaos/internal/history"
	"github.com/march-id/march/cmd/chaos/internal/runlog"
	"github.com/march-id/march/internal/testcluster"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var bg = context.Background()

// run is a small run without a fault, to which a test adds one.
type run struct {
	t      *testing.T
	dir    string
	store  *ledgertest.Fake
	admin  *admin.Admin
	events *runlog.Events
	fails  int // files of failed calls
	stop   func()
	short  bool      // its history was stopped before the end of the run
	at     time.Time // the time of the last answer: a millisecond apart, an hour ago
	leased time.Time // the time of the leases: before the answers
}

// worker is an instance and its caller.
type worker struct {
	run    *run
	room   allocator.Room
	name   allocator.Instance
	tag    allocator.Tag
	conn   *ledgertest.Conn
	joined *ledger.Instance
	source allocator.Source
	log    *bytes.Buffer
	file   *runlog.Writer
	held   []allocator.Run
}

func newRun(t *testing.T) *run {
	r := &run{t: t, dir: t.TempDir(), store: ledgertest.NewFake(t), at: time.Now().Add(-time.Hour)}
	r.leased = r.at.Add(-time.Minute)
	must(t, os.Mkdir(filepath.Join(r.dir, "logs"), 0o700))
	must(t, runlog.Run{Cluster: "default", Kinds: []string{"kill"}, Seed: 7}.Write(r.dir))
	var err error
	r.events, err = runlog.CreateEvents(r.dir)
	must(t, err)
	ctx, cancel := context.WithCancel(bg)
	var done sync.WaitGroup
	done.Go(func() {
		if err := history.Follow(ctx, history.Config{Cluster: "default", Dir: r.history(), Store: r.store.Open(),
			CheckEvery: 20 * time.Millisecond}); err != nil {
			t.Errorf("follow: %v", err)
		}
	})
	r.stop = sync.OnceFunc(func() { cancel(); done.Wait() })
	t.Cleanup(r.stop)
	r.recorded()
	own, err := ledger.New(r.store.Open(), ledger.DefaultConfig())
	must(t, err)
	r.admin = admin.New(own, admin.DefaultConfig())
	_, err = r.admin.Init(bg, allocator.Layout{Boundary: 100,
		Ranges: map[allocator.Room]allocator.Range{"a": {Lower: 0, Upper: 50}, "b": {Lower: 50, Upper: 100}}}, "test")
	must(t, err)
	_, err = r.admin.CreateTag(bg, "t", record.DefaultTag(), "test")
	must(t, err)
	r.events.Add(runlog.Event{What: runlog.FaultBegan, Fault: 1, Kind: "kill"})
	r.events.Add(runlog.Event{What: runlog.FaultEnded, Fault: 1, Kind: "kill"})
	return r
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (r *run) history() string { return filepath.Join(r.dir, runlog.Dir) }

// recorded waits until the history has all of etcd's revisions.
func (r *run) recorded() {
	want := r.store.Revision()
	testcluster.Await(r.t, fmt.Sprintf("recorded up to revision %d", want), func() bool {
		h, err := history.Read(r.history(), "default")
		return err == nil && len(h.Lives) > 0 && h.Lives[len(h.Lives)-1].Last >= want
	})
}

func (r *run) join(room allocator.Room, name allocator.Instance) *worker {
	r.t.Helper()
	return r.joinFor("t", room, name)
}

// joinFor makes an instance join that leases IDs of a tag.
func (r *run) joinFor(tag allocator.Tag, room allocator.Room, name allocator.Instance) *worker {
	r.t.Helper()
	w := &worker{run: r, room: room, name: name, tag: tag, conn: r.store.Open(), log: &bytes.Buffer{}}
	cfg := ledger.DefaultConfig()
	cfg.Logger = hclog.New(&hclog.LoggerOptions{Output: w.log, Level: hclog.Debug, JSONFormat: true,
		TimeFn: func() time.Time {
			return r.leased
		}})
	l, err := ledger.New(w.conn, cfg)
	must(r.t, err)
	w.joined, err = l.Join(bg, ledger.Registration{Room: room, Name: name})
	must(r.t, err)
	w.source, _, err = w.joined.Source(bg, tag)
	must(r.t, err)
	w.file, err = runlog.Create(r.dir, fmt.Sprintf("%s-%s-%s", room, name, tag))
	must(r.t, err)
	return w
}

// lease leases IDs that can be issued later.
func (w *worker) lease(n int64) {
	w.run.t.Helper()
	seg, err := w.source.Lease(bg, n)
	must(w.run.t, err)
	for r := range seg.Runs() {
		w.held = append(w.held, r)
	}
}

// issue issues up to n of the held IDs.
func (w *worker) issue(n int64) allocator.Run {
	run := w.held[0]
	run.Count = min(run.Count, n)
	if w.held[0].First, w.held[0].Count = run.First+run.Count, w.held[0].Count-run.Count; w.held[0].Count == 0 {
		w.held = w.held[1:]
	}
	w.answer(run, time.Time{})
	return run
}

// answer logs that a caller got IDs. The call was sent at sent, or just now if sent is zero.
func (w *worker) answer(run allocator.Run, sent time.Time) {
	w.run.t.Helper()
	w.run.at = w.run.at.Add(time.Millisecond)
	if sent.IsZero() {
		sent = w.run.at.Add(-time.Microsecond)
	}
	must(w.run.t, w.file.Add(runlog.Answer{
		Sent: sent, Received: w.run.at, Room: w.room, Instance: w.name, Tag: w.tag,
		Runs: []allocator.Run{run},
	}))
}

// end ends the run.
func (r *run) end(workers ...*worker) {
	r.t.Helper()
	if !r.short {
		r.recorded()
	}
	r.stop()
	for _, w := range workers {
		must(r.t, w.file.Close())
		must(r.t, os.WriteFile(filepath.Join(r.dir, "logs", fmt.Sprintf("%s.%s.log", w.room, w.name)),
			w.log.Bytes(), 0o600))
	}
	r.events.Add(runlog.Event{What: runlog.Ended, Revision: r.store.Revision(),
		ClusterID: fmt.Sprintf("%x", ledgertest.ClusterID)})
	must(r.t, r.events.Close())
}
