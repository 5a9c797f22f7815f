//go:build live

package conformance

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"encoding/pem"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/timeid"
	"github.com/march-id/march/api/client"
	"github.com/march-id/march/internal/access"
	"github.com/march-id/march/internal/programs"
	"github.com/march-id/march/internal/testcluster"
	"github.com/march-id/march/room"
)

var outage = flag.Duration("outage", 5*time.Second, "how long etcd does not answer in the run of the clients")

// clients are the clients of other languages: how to run a program of theirs, the driver or the bench, after what
// prepares it.
var clients = []struct {
	name, folder string
	programs     []string
	prepare      []string
	run          map[string][]string // the driver, the unit tests, and the bench
}{
	{"python", "../python", []string{"python3"}, nil, map[string][]string{
		"driver": {"python3", "tests/driver.py"}, "bench": {"python3", "tests/bench.py"},
		"service": {"python3", "example/service.py"},
		"unit":    {"python3", "-m", "unittest", "discover", "-s", "tests"}}},
	{"node", "../node", []string{"node"}, nil, map[string][]string{
		"driver": {"node", "test/driver.js"}, "bench": {"node", "test/bench.js"},
		"service": {"node", "example/service.js"}, "unit": {"node", "--test", "test/vectors.test.js",
			"test/client.test.js"}}},
	{"java", "../java", []string{"java", "javac"},
		[]string{"bash", "-c", `javac --release 17 -Xlint:all -Werror -d "$OUT" $(find src -name '*.java')`},
		map[string][]string{
			"driver": {"java", "io.github.marchid.Driver"}, "bench": {"java", "io.github.marchid.Bench"},
			"service": {"java", "example/Service.java"},
			"unit":    {"java", "io.github.marchid.VectorsTest", "../../testdata/clients"}}},
}

// compiled is the folder with what prepare compiles.
var compiled string

// prepare compiles what must be compiled, once.
var prepare = sync.OnceValue(func() (err error) {
	if compiled, err = os.MkdirTemp("", "march-clients"); err != nil {
		return err
	}
	for _, c := range clients {
		if c.prepare != nil {
			if text, err := command(context.Background(), c.folder, compiled, c.prepare...).Output(); err != nil {
				return fmt.Errorf("%s: %w: %s", c.name, err, text)
			}
		}
	}
	return nil
})

func TestMain(m *testing.M) {
	code := m.Run()
	_ = os.RemoveAll(compiled)
	os.Exit(code)
}

// prepared finds the clients' programs, and returns the folder of prepare.
func prepared(t *testing.T) (out string) {
	t.Helper()
	for _, c := range clients {
		for _, program := range c.programs {
			programs.Find(t, program)
		}
	}
	if err := prepare(); err != nil {
		t.Fatal(err)
	}
	return compiled
}

// command returns a command of a client in its folder.
func command(ctx context.Context, folder, out string, words ...string) *exec.Cmd {
	c := exec.CommandContext(ctx, words[0], words[1:]...)
	c.Dir, c.Stderr = folder, os.Stderr
	c.Env = append(os.Environ(), "OUT="+out, "CLASSPATH="+out, "PYTHONPATH=.", "PYTHONDONTWRITEBYTECODE=1")
	return c
}

// front is a proxy before the HTTP side of an instance, which fails on demand.
type front struct {
	*httptest.Server
	fault            atomic.Value // of type string: "", hang, break, proxy, nonsense
	leases, refusals atomic.Int64
}

func newFront(t *testing.T, behind string, serve func(http.Handler) *httptest.Server) *front {
	t.Helper()
	f := &front{}
	f.fault.Store("")
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: behind})
	proxy.ModifyResponse = func(r *http.Response) error {
		if r.StatusCode == http.StatusUnauthorized {
			f.refusals.Add(1)
		}
		return nil
	}
	proxy.ErrorHandler = func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) }
	f.Server = serve(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/order/lease") {
			f.leases.Add(1)
		}
		switch f.fault.Load() {
		case "hang":
			select {
			case <-r.Context().Done():
			case <-time.After(5 * time.Second):
			}
		case "break":
			panic(http.ErrAbortHandler)
		case "proxy":
			http.Error(w, "<html>503</html>", http.StatusServiceUnavailable)
		case "lost": // the answer is: the IDs are a gap
			proxy.ServeHTTP(httptest.NewRecorder(), r)
			panic(http.ErrAbortHandler)
		default:
			proxy.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(f.Close)
	return f
}

// issued is what all clients issued.
type issued struct {
	sync.Mutex
	ids     map[string]map[int64]string // by tag, with the client
	count   map[string]int              // by client and tag
	settled time.Time                   // no lease of the first layout may be used any more; zero: not yet known
	late    []int64                     // the counter's IDs of calls that began later
	// Etcd is away for longer than the windows of clients that have just begun: then time-ordered IDs may fail.
	outlasted bool
	excused   map[string]int // such failures, by client
}

// failed notes a call that failed.
func (i *issued) failed(t *testing.T, who, tag, why string) {
	i.Lock()
	defer i.Unlock()
	if !i.outlasted || tag != "event" || !strings.HasPrefix(why, "unavailable ") {
		t.Errorf("%s: a call for %s failed: %s", who, tag, why)
	}
	i.excused[who]++
}

// add notes a run of a call that began at a time, and fails for an ID that was there before.
func (i *issued) add(t *testing.T, who, tag string, run allocator.Run, began time.Time) {
	i.Lock()
	defer i.Unlock()
	if i.ids[tag] == nil {
		i.ids[tag] = make(map[int64]string)
	}
	for k := range run.Count {
		id := run.First + k*max(run.Stride, 1)
		if before, twice := i.ids[tag][id]; twice {
			t.Errorf("ID %d of %s twice: by %s and %s", id, tag, before, who)
		}
		i.ids[tag][id] = who
		if tag == "order" && !i.settled.IsZero() && began.After(i.settled) {
			i.late = append(i.late, id)
		}
	}
	i.count[who+" "+tag] += int(run.Count)
}

// drive runs the driver of a client until stop is closed, and reads what it writes.
func drive(t *testing.T, name string, c *exec.Cmd, all *issued, ready *sync.WaitGroup, stop <-chan struct{}) {
	t.Helper()
	started := sync.OnceFunc(ready.Done)
	defer started()
	in, err := c.StdinPipe()
	if err != nil {
		t.Error(err)
		return
	}
	out, err := c.StdoutPipe()
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		t.Error(err)
		return
	}
	go func() {
		<-stop
		_ = in.Close()
	}()
	var says []string
	for lines := bufio.NewScanner(out); lines.Scan(); {
		words := strings.Fields(lines.Text())
		switch {
		case len(words) == 6 && words[0] == "id":
			var n [4]int64
			for k := range n {
				if n[k], err = strconv.ParseInt(words[k+2], 10, 64); err != nil {
					t.Errorf("%s: %s", name, lines.Text())
				}
			}
			all.add(t, name, words[1], allocator.Run{First: n[0], Count: n[1], Stride: n[2]}, time.UnixMilli(n[3]))
			started()
		case len(words) > 2 && words[0] == "error":
			all.failed(t, name, words[1], strings.Join(words[2:], " "))
		default:
			says = append(says, lines.Text())
		}
	}
	if err := c.Wait(); err != nil {
		t.Errorf("%s: %v", name, err)
	}
	if len(says) != 3 || says[1] != "unknown not_found" || says[2] != "closed closed" {
		t.Errorf("%s says %q", name, says)
	} else if text := strings.Fields(says[0]); len(text) != 4 || !strings.HasPrefix(text[1], "ORD-") ||
		text[2] != text[3] {
		t.Errorf("%s: text %q", name, text)
	}
}

// driveGo does with the Go client what the drivers do with theirs.
func driveGo(t *testing.T, opts client.Options, all *issued, stop <-chan struct{}) {
	t.Helper()
	ids, err := client.New(t.Context(), opts)
	if err != nil {
		t.Error(err)
		return
	}
	defer ids.Close()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-stop:
			return
		case <-tick.C:
		}
		for _, tag := range opts.WarmTags {
			began := time.Now()
			runs, err := ids.NextN(t.Context(), tag, 5)
			if err != nil {
				all.failed(t, "go", tag, fmt.Sprintf("%v %v", allocator.KindOf(err), err))
			}
			for _, run := range runs {
				all.add(t, "go", tag, run, began)
			}
		}
	}
}

// TestClients: all clients issue IDs of one cluster at once, while ranges move, etcd is away, an instance is killed,
// the token of all ends for some seconds, and instances hang, break connections, lose answers, or stand behind a proxy
// that answers for them. No call fails, no ID comes twice, and each is of the room's range.
func TestClients(t *testing.T) {
	t.Parallel()
	out := prepared(t)
	for _, c := range clients {
		t.Run("unit tests of "+c.name, func(t *testing.T) {
			if text, err := command(t.Context(), c.folder, out, c.run["unit"]...).Output(); err != nil {
				t.Errorf("%v: %s", err, text)
			}
		})
	}

	cluster := testcluster.New(t)
	halves := testcluster.Halves()
	cluster.Init(halves, "test")
	cluster.Tag(nil, "test", "order")
	cluster.Tag(func(s *record.TagSettings) { s.Format = "prefix(ORD-) | radix62(11)" }, "test", "coded")
	cluster.Tag(func(s *record.TagSettings) {
		timed := record.NewTimeTag(timeid.Layout{TimeBits: 41, WorkerBits: 10, SequenceBits: 12, Unit: time.Millisecond,
			Epoch: timeid.EpochCosId})
		s.Time = &timed
	}, "test", "event")

	dir := t.TempDir()
	token, line, err := access.NewToken("shop", time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	write := func(name, content string) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	tokenFile, hashes := write("token", token+"\n"), write("tokens", line+"\n")
	rules := write("policy.yaml",
		"grants:\n  - {subjects: \"token:shop\", roles: issuer, tags: [order, event, coded, no-such-tag]}\n")
	var gates []*access.Gate
	hold := max(20*time.Second, 4**outage)
	start := func(in allocator.Room, name allocator.Instance) *testcluster.Room {
		gate, err := access.New(access.Config{Policy: rules, Tokens: hashes, Room: string(in)})
		if err != nil {
			t.Fatal(err)
		}
		gates = append(gates, gate)
		return cluster.Room(in, name, func(cfg *room.Config) {
			cfg.HTTP, cfg.Access, cfg.Drain = testcluster.Listen(t, ""), gate, time.Second
			cfg.Hold = hold
		})
	}
	first, second, other := start("a", "a1"), start("a", "a2"), start("b", "b1")
	fronts := []*front{newFront(t, first.HTTP, httptest.NewTLSServer), newFront(t, second.HTTP, httptest.NewTLSServer)}
	fallback := newFront(t, other.HTTP, httptest.NewServer)
	step := max(20_000, int64(3000*outage.Seconds()))
	options, err := json.Marshal(map[string]any{"addresses": []string{fronts[0].URL, fronts[1].URL},
		"fallback": []string{fallback.URL}, "tags": []string{"order", "event"}, "text": "coded", "tokenFile": tokenFile,
		"ca": write("ca.pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE",
			Bytes: fronts[0].Certificate().Raw}))),
		"minStep": step})
	if err != nil {
		t.Fatal(err)
	}

	all := &issued{ids: make(map[string]map[int64]string), count: make(map[string]int), excused: make(map[string]int)}
	stop, ready, drivers := make(chan struct{}), sync.WaitGroup{}, sync.WaitGroup{}
	for _, c := range clients {
		ready.Add(1)
		drivers.Go(func() {
			words := append(slices.Clone(c.run["driver"]), string(options))
			drive(t, c.name, command(t.Context(), c.folder, out, words...), all, &ready, stop)
		})
	}
	drivers.Go(func() {
		driveGo(t, client.Options{Addresses: []string{first.Address, second.Address}, Fallback: []string{other.Address},
			TokenFile: tokenFile, MinStep: step, WarmTags: []string{"order", "event"}}, all, stop)
	})
	ready.Wait()
	time.Sleep(time.Second)
	moved := allocator.Layout{Boundary: 100, Ranges: map[allocator.Room]allocator.Range{
		"a": {Lower: 0, Upper: 25}, "b": {Lower: 50, Upper: 100}}}
	version := cluster.Change(moved, "test")
	testcluster.Await(t, "instances adopted the layout", func() bool {
		list, _, err := cluster.Admin.Instances(t.Context(), "")
		return err == nil && !slices.ContainsFunc(list, func(i record.Instance) bool { return i.Reported() < version })
	})
	settled := time.Now().Add(hold)
	all.Lock()
	all.settled = settled
	all.Unlock()
	time.Sleep(time.Second)
	for _, fault := range []string{"hang", "break", "lost", "proxy"} {
		at := fronts[rand.IntN(len(fronts))]
		at.fault.Store(fault)
		time.Sleep(time.Second)
		at.fault.Store("")
	}
	fronts[1].Close() // connections are refused
	second.Stop()
	time.Sleep(2 * time.Second)
	write("tokens", "# none\n")
	for _, gate := range gates {
		gate.Reload(time.Now())
	}
	testcluster.Await(t, "rooms refuse the token", func() bool { return fronts[0].refusals.Load() > 2 })
	write("tokens", line+"\n")
	for _, gate := range gates {
		gate.Reload(time.Now())
	}
	time.Sleep(2 * time.Second)
	all.Lock()
	all.outlasted = *outage > 10*time.Second
	all.Unlock()
	cluster.Etcd.Stop()
	time.Sleep(*outage)
	cluster.Etcd.Start(t)
	time.Sleep(max(2*time.Second, time.Until(settled)+time.Second))
	close(stop)
	drivers.Wait()

	for id, who := range all.ids["order"] {
		if in, ok := halves.RoomOf(id); !ok || in != "a" && fallback.leases.Load() == 0 {
			t.Errorf("%d, by %s, is not of room a", id, who)
		}
	}
	if len(all.late) == 0 {
		t.Error("no call began after the leases of the first layout had ended")
	}
	for _, id := range all.late {
		if _, ok := moved.RoomOf(id); !ok {
			t.Errorf("%d is of a range that the room gave up", id)
		}
	}
	for who, n := range all.count {
		t.Logf("%s: %d IDs", who, n)
		if n < 1000 {
			t.Errorf("%s: only %d IDs", who, n)
		}
	}
	t.Logf("time-ordered IDs that were not there while etcd was away for longer than windows: %v", all.excused)
	t.Logf("leases: %d, %d, of the other room %d; refused: %d", fronts[0].leases.Load(), fronts[1].leases.Load(),
		fallback.leases.Load(), fronts[0].refusals.Load())
}

// goRate returns how many IDs a second the Go client issues.
func goRate(t *testing.T, address string) float64 {
	t.Helper()
	const count = 20_000_000
	ids, err := client.New(t.Context(), client.Options{Addresses: []string{address}, MinStep: 10 * count})
	if err != nil {
		t.Fatal(err)
	}
	defer ids.Close()
	tag, err := ids.Tag("fast")
	if err == nil {
		err = tag.Warm(t.Context())
	}
	began := time.Now()
	for range count {
		if _, ok := tag.TryNext(); !ok && err == nil {
			_, err = tag.Next(t.Context())
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return count / time.Since(began).Seconds()
}

// goLeases returns how often the Go client asks a room for the first million IDs.
func goLeases(t *testing.T, address string) int64 {
	t.Helper()
	ids, err := client.New(t.Context(), client.Options{Addresses: []string{address}})
	if err != nil {
		t.Fatal(err)
	}
	defer ids.Close()
	for range 1_000_000 {
		if _, err := ids.Next(t.Context(), "order"); err != nil {
			t.Fatal(err)
		}
	}
	return ids.Status()[0].Refills
}

// TestSpeed measures how many IDs each client issues, and how often it asks a room for the first million. It prints
// each rate as a part of the Go client's on the same machine, and Java's as a part of an AtomicLong's:
//
//	go test -tags live ./clients/conformance -run TestSpeed -v
func TestSpeed(t *testing.T) {
	out := prepared(t)
	cluster := testcluster.NewFake(t)
	cluster.Init(testcluster.Halves(), "test")
	cluster.Tag(func(s *record.TagSettings) { s.MaxStep = 1 << 40 }, "test", "order", "fast")
	in := cluster.Room("a", "a1", func(cfg *room.Config) { cfg.HTTP = testcluster.Listen(t, "") })
	chain := goRate(t, in.Address)
	leases := goLeases(t, in.Address)
	t.Logf("go: %.0f million IDs a second; %d leases", chain/1e6, leases)
	if leases > 20 {
		t.Errorf("go: %d leases for a million IDs; allowed: 20", leases)
	}
	for _, c := range clients {
		at := newFront(t, in.HTTP, httptest.NewServer)
		words := append(slices.Clone(c.run["bench"]), at.URL, "order", "fast")
		text, err := command(t.Context(), c.folder, out, words...).Output()
		var figures map[string]float64
		if err != nil || json.Unmarshal(text, &figures) != nil {
			t.Errorf("%s: %v: %s", c.name, err, text)
		}
		ratio := figures["perSecond"] / chain
		t.Logf("%s: %.1f million IDs a second, 1/%.0f of Go's; %d leases", c.name, figures["perSecond"]/1e6, 1/ratio,
			at.leases.Load())
		least := map[string]float64{"python": 1.0 / 400, "node": 10.0 / 400}[c.name]
		if atomic := figures["atomicLong"]; atomic > 0 {
			ratio, least = figures["perSecond"]/atomic, 0.5
			t.Logf("%s: %.2f of an AtomicLong, with %.0f threads %.2f", c.name, ratio, figures["threads"],
				figures["perSecondOfAll"]/figures["atomicLongOfAll"])
		}
		if ratio < least {
			t.Errorf("%s: %.4f; wanted: %.4f", c.name, ratio, least)
		}
		if leases := at.leases.Load(); leases > 20 {
			t.Errorf("%s: %d leases for a million IDs; allowed: 20", c.name, leases)
		}
	}
}

// TestServices: the service in each client's language, which docs/clients.md has, answers with IDs.
func TestServices(t *testing.T) {
	t.Parallel()
	out := prepared(t)
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "clients.md"))
	if err != nil {
		t.Fatal(err)
	}
	// .ci/run tests the Go service in a module of its own.
	if text, err := os.ReadFile("../go/example/service.go"); err != nil || !bytes.Contains(page, text) {
		t.Errorf("docs/clients.md has not the whole of service.go: %v", err)
	}
	cluster := testcluster.NewFake(t)
	cluster.Init(testcluster.Halves(), "test")
	cluster.Tag(nil, "test", "order")
	in := cluster.Room("a", "a1", func(cfg *room.Config) { cfg.HTTP = testcluster.Listen(t, "") })
	for _, c := range clients {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			words := c.run["service"]
			text, err := os.ReadFile(filepath.Join(c.folder, words[len(words)-1]))
			if err != nil || !bytes.Contains(page, text) {
				t.Errorf("docs/clients.md has not the whole of %s: %v", words[len(words)-1], err)
			}
			free := testcluster.Listen(t, "")
			at := free.Addr().String()
			_ = free.Close()
			_, port, _ := strings.Cut(at, ":")
			service := command(t.Context(), c.folder, out, append(slices.Clone(words), port, "http://"+in.HTTP)...)
			if err := service.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				_ = service.Process.Kill()
				_ = service.Wait()
			})
			var answer struct{ Order string }
			testcluster.Await(t, "an order", func() bool {
				r, err := testcluster.Client().Post("http://"+at+"/orders", "application/json", http.NoBody)
				if err != nil {
					return false
				}
				defer func() { _ = r.Body.Close() }()
				text, err := io.ReadAll(r.Body)
				return err == nil && r.StatusCode == http.StatusCreated && json.Unmarshal(text, &answer) == nil
			})
			if id, err := strconv.ParseInt(answer.Order, 10, 64); err != nil || id%100 >= 50 {
				t.Errorf("order %q", answer.Order)
			}
		})
	}
}
