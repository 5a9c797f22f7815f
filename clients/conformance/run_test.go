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
	"log"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/allocator/timeid"
	"github.com/march-id/march/api/client"
	"github.com/march-id/march/api/tlsfiles"
	"github.com/march-id/march/internal/access"
	"github.com/march-id/march/internal/programs"
	"github.com/march-id/march/internal/testcluster"
	"github.com/march-id/march/room"
)

var outage = flag.Duration("outage", time.Minute, "how long etcd does not answer in the run of the clients")

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
	if given := os.Getenv(instanceEnv); given != "" {
		if err := instance(given); err != nil {
			log.Fatal(err)
		}
		return
	}
	code := m.Run()
	_ = os.RemoveAll(compiled)
	os.Exit(code)
}

// prepared finds the clients' programs, and returns the folder of prepare.
func prepared(t *testing.T) (out string) {
	t.Helper()
	programs.OnlyInAll(t, "of the clients of other languages")
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

// drive runs the driver of a client until stop is closed, and reads what it writes. Each line that it reads has it take
// IDs of the first tag until it holds half of a lease, so that it asks a room for more.
func (c *caller) drive(t *testing.T, command *exec.Cmd, drain <-chan struct{}, ready *sync.WaitGroup,
	stop <-chan struct{}) {
	t.Helper()
	started := sync.OnceFunc(ready.Done)
	defer started()
	in, err := command.StdinPipe()
	if err != nil {
		t.Error(err)
		return
	}
	out, err := command.StdoutPipe()
	if err == nil {
		err = command.Start()
	}
	if err != nil {
		t.Error(err)
		return
	}
	go func() {
		for {
			select {
			case <-drain:
				_, _ = io.WriteString(in, "\n")
			case <-stop:
				_ = in.Close()
				return
			}
		}
	}()
	var says []string
	for lines := bufio.NewScanner(out); lines.Scan(); {
		words := strings.Fields(lines.Text())
		switch {
		case len(words) == 6 && words[0] == "id":
			var n [4]int64
			for k := range n {
				if n[k], err = strconv.ParseInt(words[k+2], 10, 64); err != nil {
					t.Errorf("%s: %s", c.name, lines.Text())
				}
			}
			c.add(words[1], allocator.Run{First: n[0], Count: n[1], Stride: n[2]}, time.UnixMilli(n[3]))
			started()
		case len(words) > 0 && words[0] == "error":
			t.Errorf("%s: a call failed: %s", c.name, lines.Text())
		default:
			says = append(says, lines.Text())
		}
	}
	if err := command.Wait(); err != nil {
		t.Errorf("%s: %v", c.name, err)
	}
	if len(says) != 3 || says[1] != "unknown not_found" || says[2] != "closed closed" {
		t.Errorf("%s says %q", c.name, says)
	} else if text := strings.Fields(says[0]); len(text) != 4 || !strings.HasPrefix(text[1], "ORD-") ||
		text[2] != text[3] {
		t.Errorf("%s: text %q", c.name, text)
	}
}

// driveGo does with the Go client what the drivers do with theirs.
func (c *caller) driveGo(t *testing.T, opts client.Options, drain <-chan struct{}, ready *sync.WaitGroup,
	stop <-chan struct{}) {
	t.Helper()
	started := sync.OnceFunc(ready.Done)
	defer started()
	ids, err := client.New(t.Context(), opts)
	for err != nil && allocator.KindOf(err) == allocator.Unavailable { // a busy machine may take longer to start all
		ids, err = client.New(t.Context(), opts)
	}
	if err != nil {
		t.Error(err)
		return
	}
	defer ids.Close()
	take := func(name string, n int64) {
		began := time.Now()
		runs, err := ids.NextN(t.Context(), name, n)
		if err != nil {
			t.Errorf("go: a call for %d IDs of %s failed: %v", n, name, err)
		}
		for _, run := range runs {
			c.add(name, run, began)
		}
		started()
	}
	tick := time.NewTicker(pace)
	defer tick.Stop()
	for {
		select {
		case <-stop:
			return
		case <-drain:
			for _, s := range ids.Status() {
				if n := s.Held - opts.MinStep/2; string(s.Tag) == opts.WarmTags[0] && n > 0 {
					take(opts.WarmTags[0], n)
				}
			}
		case <-tick.C:
			for _, tag := range opts.WarmTags {
				take(tag, 5)
				take(tag, 1)
			}
		}
	}
}

// pace is how long the threads of drivers wait between two calls: one for an ID and one for five, for each tag.
const pace = 20 * time.Millisecond

// config is what an instance in a process of its own is started with.
type config struct {
	Endpoint, Policy, Tokens string
	Hold                     time.Duration
}

// instanceEnv has the config of an instance, in its process.
const instanceEnv = "MARCH_CONFORMANCE_INSTANCE"

// instance runs instance a2 of room a until its input ends, and writes the addresses of its gRPC and its HTTP side.
func instance(text string) error {
	var given config
	if err := json.Unmarshal([]byte(text), &given); err != nil {
		return err
	}
	etcd, err := store.NewEtcd(store.EtcdConfig{Endpoints: []string{given.Endpoint}})
	if err != nil {
		return err
	}
	cfg := room.DefaultConfig()
	cfg.Room, cfg.Name, cfg.Hold = "a", "a2", given.Hold
	if cfg.Ledger, err = ledger.New(etcd, ledger.DefaultConfig()); err != nil {
		return err
	}
	if cfg.Access, err = access.New(access.Config{Policy: given.Policy, Tokens: given.Tokens, Room: "a"}); err != nil {
		return err
	}
	if cfg.GRPC, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		return err
	}
	if cfg.HTTP, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		return err
	}
	server, err := room.New(cfg)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	fmt.Println(cfg.GRPC.Addr(), cfg.HTTP.Addr())
	return server.Run(ctx)
}

// startInstance starts an instance in a process of its own, and returns the addresses of its gRPC and its HTTP side.
func startInstance(t *testing.T, given config) (process *os.Process, grpcAt, httpAt string) {
	t.Helper()
	text, err := json.Marshal(given)
	if err != nil {
		t.Fatal(err)
	}
	c := exec.CommandContext(t.Context(), os.Args[0])
	c.Env, c.Stderr = append(os.Environ(), instanceEnv+"="+string(text)), os.Stderr
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.StdoutPipe()
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		_ = c.Wait() // that it was killed
	})
	if _, err := fmt.Fscan(out, &grpcAt, &httpAt); err != nil {
		t.Fatalf("the instance's addresses: %v", err)
	}
	testcluster.Await(t, "the instance is ready", func() bool {
		code, _ := testcluster.Get(httpAt, "/readyz")
		return code == http.StatusOK
	})
	return c.Process, grpcAt, httpAt
}

// TestClients: all clients issue IDs of one cluster at once, while a range moves, an instance is killed, the token of
// all ends, etcd is away for a minute, and proxies hang, break connections, lose answers and answer for the room.
// Each of that happens to each client, on its own way to the rooms. No call fails, no ID comes twice,
// and each is of a segment that a room leased to its client. Nothing depends on how fast the machine is: the test waits
// until a thing has happened, and clients hold IDs for ten times as long as etcd is away.
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
	layouts := map[int64]allocator.Layout{1: {Boundary: 1000, Ranges: map[allocator.Room]allocator.Range{
		"a": {Lower: 0, Upper: 500}, "b": {Lower: 500, Upper: 1000}}}}
	cluster.Init(layouts[1], "test")
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
	tokenFile := write("token", token+"\n")
	given := config{Endpoint: cluster.Etcd.Endpoint, Hold: max(time.Minute, 10**outage),
		Tokens: write("tokens", line+"\n"), Policy: write("policy.yaml",
			"grants:\n  - {subjects: \"token:shop\", roles: issuer, tags: [order, event, coded, no-such-tag]}\n")}
	var gates []*access.Gate
	start := func(in allocator.Room, name allocator.Instance) *testcluster.Room {
		gate, err := access.New(access.Config{Policy: given.Policy, Tokens: given.Tokens, Room: string(in)})
		if err != nil {
			t.Fatal(err)
		}
		gates = append(gates, gate)
		return cluster.Room(in, name, func(cfg *room.Config) {
			cfg.HTTP, cfg.Access, cfg.Drain = testcluster.Listen(t, ""), gate, time.Second
			cfg.Hold = given.Hold
		})
	}
	first, other := start("a", "a1"), start("b", "b1")
	process, secondGRPC, secondHTTP := startInstance(t, given)

	step := max(20_000, int64(3000*outage.Seconds())) // each tag is asked for 300 IDs a second
	stop, ready, drivers := make(chan struct{}), sync.WaitGroup{}, sync.WaitGroup{}
	var callers []*caller
	drain := make(map[*caller]chan struct{})
	add := func(c *caller, run func(drain <-chan struct{})) {
		wake := make(chan struct{}, 1)
		callers, drain[c] = append(callers, c), wake
		ready.Add(1)
		drivers.Go(func() { run(wake) })
	}
	defer drivers.Wait()
	end := sync.OnceFunc(func() { close(stop) })
	defer end() // where the test fails
	for _, of := range clients {
		c := newCaller(of.name)
		one, two := c.front(t, "a", first.HTTP, true, false), c.front(t, "a", secondHTTP, true, false)
		options, err := json.Marshal(map[string]any{"addresses": []string{one.URL, two.URL},
			"fallback": []string{c.front(t, "b", other.HTTP, false, false).URL}, "tags": []string{"order", "event"},
			"text": "coded", "tokenFile": tokenFile, "ca": write("ca.pem", certificate(one)), "minStep": step,
			"pause": pace.Milliseconds()})
		if err != nil {
			t.Fatal(err)
		}
		add(c, func(drain <-chan struct{}) {
			words := append(slices.Clone(of.run["driver"]), string(options))
			c.drive(t, command(t.Context(), of.folder, out, words...), drain, &ready, stop)
		})
	}
	golang := newCaller("go")
	for _, at := range []struct {
		room    allocator.Room
		address string
	}{{"a", first.Address}, {"a", secondGRPC}, {"b", other.Address}} {
		golang.front(t, at.room, at.address, true, true)
	}
	ca, err := tlsfiles.Open(tlsfiles.Config{CA: write("ca.pem", certificate(golang.fronts[0]))})
	if err != nil {
		t.Fatal(err)
	}
	address := func(k int) string { return golang.fronts[k].Listener.Addr().String() }
	add(golang, func(drain <-chan struct{}) {
		golang.driveGo(t, client.Options{Addresses: []string{address(0), address(1)}, Fallback: []string{address(2)},
			TokenFile: tokenFile, TLS: ca, MinStep: step, MaxStep: step, Strict: true,
			WarmTags: []string{"order", "event"}}, drain, &ready, stop)
	})
	ready.Wait()

	// each has something happen to all callers, which then ask rooms for more, and waits until it has happened to each.
	// Before it the callers' windows last: their length grows with their age, and a renewal is what may fail.
	each := func(what string, windows time.Duration, begin func(c *caller), until func(c *caller) bool) {
		t.Helper()
		for _, c := range callers {
			testcluster.Await(t, c.name+" has a window that lasts, before: "+what, func() bool {
				return time.Until(c.lasts()) >= windows || t.Failed()
			})
		}
		t.Log(what)
		for _, c := range callers {
			begin(c)
		}
		for _, c := range callers {
			leased := -1
			testcluster.Await(t, c.name+": "+what, func() bool {
				if n := c.leased(0); n != leased { // at first, and where it did not happen to that lease
					leased = n
					select {
					case drain[c] <- struct{}{}:
					default:
					}
				}
				return until(c) || t.Failed()
			})
		}
		if t.Failed() {
			t.FailNow()
		}
	}
	before := make(map[*caller]int)
	remember := func(c *caller) { before[c] = c.leased(0) }
	more := func(c *caller) bool { return c.leased(0) > before[c] }
	met := func(what string) func(*caller) bool {
		return func(c *caller) bool {
			n, left := c.times(what)
			return n > 0 && left == 0
		}
	}

	layouts[2] = allocator.Layout{Boundary: 1000, Ranges: map[allocator.Room]allocator.Range{
		"a": {Lower: 0, Upper: 250}, "b": {Lower: 500, Upper: 1000}}}
	cluster.Change(layouts[2], "test")
	testcluster.Await(t, "instances adopted the layout", func() bool {
		list, _, err := cluster.Admin.Instances(t.Context(), "")
		return err == nil && !slices.ContainsFunc(list, func(i record.Instance) bool { return i.Reported() < 2 })
	})
	each("a range moved", 0, remember, func(c *caller) bool { return c.leased(2) > 0 })
	for _, fault := range []string{hang, breaks, lost, proxy} {
		each(fault, *outage, func(c *caller) { c.fail(5, fault, nil) }, met(fault)) // there are three rooms to ask
	}
	if err := process.Kill(); err != nil {
		t.Fatal(err)
	}
	each("an instance is killed", *outage, func(c *caller) { c.fail(1, proxy, c.fronts[0]) }, met(killed))
	for _, c := range callers {
		c.fronts[1].end() // connections are refused, from now on
	}
	reload := func(hashes string) {
		write("tokens", hashes)
		for _, gate := range gates {
			gate.Reload(time.Now())
		}
	}
	none := sync.OnceFunc(func() { reload("# none\n") }) // once all windows last, not before
	each("the token ended", 2**outage, func(*caller) { none() }, met(refused))
	reload(line + "\n")
	each("the token is back", 2**outage, remember, more)
	cluster.Etcd.Stop()
	time.Sleep(*outage)
	cluster.Etcd.Start(t)
	each("etcd is back", 0, remember, more)
	end()
	drivers.Wait()
	for _, c := range callers {
		for _, f := range c.fronts {
			f.end() // so that it notes no more
		}
		t.Logf("%s: %d IDs in %d leases; met %v", c.name, c.check(t, layouts), len(c.mu.leases), c.mu.met)
	}
	unique(t, callers)
}

// certificate returns the certificate of a front, as a file has it.
func certificate(f *front) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: f.Certificate().Raw}))
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

// TestSpeed counts how often each client asks a room for the first million IDs. It prints how many IDs a second each
// issues, too, as a part of the Go client's on the same machine, and Java's as a part of an AtomicLong's. These figures
// mean something where nothing else runs, so no verdict depends on them:
//
//	LIVE=1 go test ./clients/conformance -run TestSpeed -v
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
		at := newCaller(c.name)
		way := at.front(t, "a", in.HTTP, false, false)
		words := append(slices.Clone(c.run["bench"]), way.URL, "order", "fast")
		text, err := command(t.Context(), c.folder, out, words...).Output()
		var figures map[string]float64
		if err != nil || json.Unmarshal(text, &figures) != nil {
			t.Errorf("%s: %v: %s", c.name, err, text)
		}
		way.end() // so that none of its requests is under way
		t.Logf("%s: %.1f million IDs a second, 1/%.0f of Go's; %d leases", c.name, figures["perSecond"]/1e6,
			chain/figures["perSecond"], at.mu.asked)
		if atomic := figures["atomicLong"]; atomic > 0 {
			t.Logf("%s: %.2f of an AtomicLong, with %.0f threads %.2f", c.name, figures["perSecond"]/atomic,
				figures["threads"], figures["perSecondOfAll"]/figures["atomicLongOfAll"])
		}
		if at.mu.asked > 20 {
			t.Errorf("%s: %d leases for a million IDs; allowed: 20", c.name, at.mu.asked)
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
			ended := make(chan struct{})
			words = append(slices.Clone(words), port, "http://"+in.HTTP)
			go func() { // as its supervisor does: it ends where the room did not answer in time
				defer close(ended)
				for t.Context().Err() == nil {
					_ = command(t.Context(), c.folder, out, words...).Run()
				}
			}()
			t.Cleanup(func() { <-ended })
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
