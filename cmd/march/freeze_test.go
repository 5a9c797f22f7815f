package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/admin"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/record"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/testcluster"
)

// TestFrozenOverMigration stops an instance with SIGSTOP, takes residues from its room, and
// lets it go on with SIGCONT, first without etcd, so that it cannot have heard of the change.
// No ID comes twice. The lost residues come only from this instance, which the console named
// as missing. They do not come from it either if the tag is strict.
func TestFrozenOverMigration(t *testing.T) {
	t.Parallel()
	etcd := ledgertest.StartEtcd(t)
	for name, c := range map[string]struct {
		room   []string // flags of the instance that is stopped
		tag    []string // flags of the tags
		goOn   bool     // an operator goes on without it; otherwise it is silent for longer than hold
		strict bool
	}{
		"without":       {goOn: true},
		"strict-silent": {room: []string{"--strict-retract"}, strict: true},
		"strict-tag":    {tag: []string{"--strict-retract"}, goOn: true, strict: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := startFrozen(t, etcd, name, c.room, c.tag)
			f.until("all instances issue", func() bool {
				return f.count("a1") > 30 && f.count("a2") > 30 && f.count("b1") > 30
			})

			f.signal(syscall.SIGSTOP)
			stopped := time.Now()
			plan := filepath.Join(t.TempDir(), "plan.json")
			f.march("migrate", "plan", "--move", "a:25-50=b", "--out", plan)
			apply := []string{"migrate", "apply", plan, "--yes", "--detach"}
			if c.goOn {
				f.march(append(apply, "--hold", "10m")...)
				f.until("it is waited for", func() bool {
					status := f.march("migrate", "status")
					return strings.Contains(status, "1 of 2 moves") && strings.Contains(status, "\na/a1 ")
				})
				f.march("migrate", "continue", "--without", "a/a1")
			} else {
				f.march(apply...)
			}
			if end := f.march("migrate", "watch"); !strings.Contains(end, "state      done") ||
				!strings.Contains(end, "goes on without a/a1") {
				t.Errorf("it is not done, or does not name the instance:\n%s", end)
			}
			f.until("its hold has passed", func() bool { return time.Since(stopped) > frozenHold })
			done := time.Now()

			f.etcd.cut()
			f.signal(syscall.SIGCONT)
			if c.strict {
				f.until("it refuses", func() bool { return f.failures("a1", done, "strict_retract is set") > 20 })
			} else {
				f.until("it issues what it holds", func() bool { return len(f.lost("a1", done)) > 20 })
			}
			f.etcd.mend()
			f.until("it reports the layout", func() bool {
				list, _, err := f.admin.Instances(t.Context(), "a")
				return err == nil && !slices.ContainsFunc(list, func(i record.Instance) bool { return i.Version < 3 })
			})
			reported := time.Now()
			before := f.count("a1")
			f.until("it issues again", func() bool { return f.count("a1") > before+30 })
			f.end()

			f.check()
			retracted := f.lost("a1", done)
			t.Logf("%d IDs; a1 issued %d retracted residues", len(f.mu.got), len(retracted))
			if c.strict && len(retracted) > 0 {
				t.Errorf("a1 is strict, and issued %v", retracted[:min(10, len(retracted))])
			}
			if late := f.lost("a1", reported); len(late) > 0 {
				t.Errorf("a1 had reported layout 3, and issued %v", late[:min(10, len(late))])
			}
			for _, other := range []string{"a2", "b1"} {
				if got := f.failures(other, time.Time{}, ""); got > 0 {
					t.Errorf("%d calls of %s failed: %v", got, other, f.mu.failed[other][0])
				}
			}
			if got := f.lost("a2", done); len(got) > 0 {
				t.Errorf("a2 was there all the while, and issued %v", got[:min(10, len(got))])
			}
			ledgertest.CheckCluster(t, etcd.Store(t), name, nil)
		})
	}
}

// frozenHold is the hold of the instance that is stopped. The others have one that no busy machine exceeds.
const frozenHold = time.Second

// frozen is a cluster of the rooms a, with two instances, and b. Their processes are called
// all the time. The first instance reaches etcd through a wire that can be cut.
type frozen struct {
	*testing.T
	cluster string
	console string // its address
	etcd    *wire
	admin   *admin.Admin
	first   *process
	stop    context.CancelFunc
	callers sync.WaitGroup
	mu      struct {
		sync.Mutex
		got    []frozenID
		count  map[string]int // by instance
		failed map[string][]frozenFailure
	}
}

type frozenID struct {
	instance string
	tag      string
	id       int64
	began    time.Time // the call
}

type frozenFailure struct {
	began time.Time
	text  string
}

func startFrozen(t *testing.T, etcd *ledgertest.Etcd, cluster string, roomFlags, tagFlags []string) *frozen {
	t.Helper()
	base, err := freeBase()
	if err != nil {
		t.Fatal(err)
	}
	address := func(k int) string { return fmt.Sprintf("127.0.0.1:%d", base+k) }
	f := &frozen{T: t, cluster: cluster, console: address(0), etcd: newWire(t, etcd.Endpoint)}
	f.mu.count, f.mu.failed = make(map[string]int), make(map[string][]frozenFailure)
	f.admin = testcluster.Over(t, cluster, etcd.Store).Admin
	start := func(args ...string) *process {
		return begin(t, "", nil, append(args, "--cluster", cluster)...).ready(t)
	}
	start("console", "--grpc", f.console, "--http", "", "--etcd", etcd.Endpoint)
	file := filepath.Join(t.TempDir(), "layout.json")
	if err := os.WriteFile(file,
		[]byte(`{"boundary":100,"rooms":{"a":{"lower":0,"upper":50},"b":{"lower":50,"upper":100}}}`),
		0o600); err != nil {
		t.Fatal(err)
	}
	f.march("layout", "init", file)
	tags := []string{"tag-0", "tag-1", "tag-2"}
	for _, tag := range tags {
		f.march(append([]string{"tag", "create", tag, "--min-step", "20000"}, tagFlags...)...)
	}
	ctx, stop := context.WithCancel(t.Context())
	f.stop = stop
	t.Cleanup(f.end)
	for k, i := range []struct{ room, name, etcd string }{{"a", "a1", f.etcd.address}, {"a", "a2", etcd.Endpoint},
		{"b", "b1", etcd.Endpoint}} {
		args := []string{"room", i.room, "--name", i.name, "--grpc", address(1 + k), "--http", "", "--etcd", i.etcd,
			"--warm-tags", strings.Join(tags, ",")}
		if k == 0 {
			args = append(append(args, "--hold", frozenHold.String()), roomFlags...)
		}
		p := start(args...)
		if k == 0 {
			f.first = p
		}
		f.call(ctx, address(1+k), i.name, tags)
	}
	return f
}

// call calls an instance until ctx ends. The calls of the one that is stopped have a deadline shorter than
// the stop.
func (f *frozen) call(ctx context.Context, address, instance string, tags []string) {
	f.Helper()
	ids := marchv1.NewIDServiceClient(testcluster.Dial(f, address))
	for _, tag := range tags {
		f.callers.Go(func() {
			for ctx.Err() == nil {
				began := time.Now()
				calling, cancel := ctx, func() {}
				if instance == "a1" {
					calling, cancel = context.WithTimeout(ctx, frozenHold/2)
				}
				r, err := ids.Next(calling, &marchv1.NextRequest{Tag: tag})
				cancel()
				if ctx.Err() == nil {
					f.took(frozenID{instance, tag, r.GetId(), began}, err)
				}
				time.Sleep(10 * time.Millisecond)
			}
		})
	}
}

func (f *frozen) took(i frozenID, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err != nil {
		f.mu.failed[i.instance] = append(f.mu.failed[i.instance], frozenFailure{i.began, err.Error()})
		return
	}
	f.mu.got = append(f.mu.got, i)
	f.mu.count[i.instance]++
}

func (f *frozen) end() {
	f.stop()
	f.callers.Wait()
}

func (f *frozen) signal(s syscall.Signal) {
	f.Helper()
	if err := f.first.cmd.Process.Signal(s); err != nil {
		f.Fatal(err)
	}
}

// march runs a command of the console to its end.
func (f *frozen) march(args ...string) string {
	f.Helper()
	stdout, stderr, code := march(f.T, append(args, "--console", f.console)...)
	if code != exitOK {
		f.Fatalf("march %s: exit code %d\n%s", strings.Join(args, " "), code, stderr)
	}
	return stdout
}

func (f *frozen) until(what string, done func() bool) {
	f.Helper()
	if err := poll(patience(f.T), done); err != nil {
		stdout, stderr := f.first.output()
		f.Fatalf("%s: %v\n%s%s", what, err, stdout, stderr)
	}
}

func (f *frozen) count(instance string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mu.count[instance]
}

// failures counts the calls that began after a time and failed with an error that contains text.
func (f *frozen) failures(instance string, after time.Time, text string) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, failure := range f.mu.failed[instance] {
		if failure.began.After(after) && strings.Contains(failure.text, text) {
			n++
		}
	}
	return n
}

// lost returns the IDs with a residue that room a lost, from calls of an instance that began
// after a time.
func (f *frozen) lost(instance string, after time.Time) (ids []int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := allocator.Range{Lower: 25, Upper: 50}
	for _, i := range f.mu.got {
		if i.instance == instance && i.began.After(after) && r.Contains(i.id%100) {
			ids = append(ids, i.id)
		}
	}
	return ids
}

// check checks that no ID came twice.
func (f *frozen) check() {
	f.Helper()
	type key struct {
		tag string
		id  int64
	}
	by := make(map[key]string)
	for _, i := range f.mu.got {
		if other, twice := by[key{i.tag, i.id}]; twice {
			f.Errorf("%s %d came from %s and from %s", i.tag, i.id, other, i.instance)
		}
		by[key{i.tag, i.id}] = i.instance
	}
}

// wire is a way to an etcd that can be cut and mended.
type wire struct {
	address string
	to      string // a unix socket's path
	done    sync.WaitGroup
	mu      struct {
		sync.Mutex
		closed bool // for new connections
		conns  []net.Conn
	}
}

func newWire(t *testing.T, endpoint string) *wire {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &wire{address: listener.Addr().String(), to: strings.TrimPrefix(endpoint, "unix://")}
	l.done.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			l.carry(conn)
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		l.cut()
		l.done.Wait()
	})
	return l
}

func (l *wire) carry(from net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	to, err := net.Dial("unix", l.to)
	if l.mu.closed || err != nil {
		_ = from.Close()
		if err == nil {
			_ = to.Close()
		}
		return
	}
	l.mu.conns = append(l.mu.conns, from, to)
	for _, way := range [][2]net.Conn{{from, to}, {to, from}} {
		l.done.Go(func() {
			_, _ = io.Copy(way[0], way[1])
			_ = way[0].Close()
		})
	}
}

func (l *wire) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.closed = true
	for _, c := range l.mu.conns {
		_ = c.Close()
	}
	l.mu.conns = nil
}

func (l *wire) mend() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.closed = false
}
