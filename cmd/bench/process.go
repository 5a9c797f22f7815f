package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/admin"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/serve"
	"github.com/march-id/march/room"
)

// process is this program as one process of a measurement. It says that it is ready, answers
// the commands that it reads, and ends when its standard input does.
type process struct {
	p       *part
	cmd     *exec.Cmd
	in      io.WriteCloser
	out     *json.Decoder
	ids     marchv1.IDServiceClient
	Address string
}

// reply is the answer of a process.
type reply struct {
	Address   string `json:",omitempty"`
	Error     string `json:",omitempty"`
	Heap      uint64 `json:",omitempty"` // bytes in use after a collection, stacks included
	P99, P999 time.Duration
	Calls     int
	// of an attacker, since it began
	Sent, Answered int64 `json:",omitempty"`
}

// start starts a process of this program, which ends with the part, and waits until it is ready. env is added
// to this program's environment.
func (p *part) start(env []string, args ...string) *process {
	c := &process{p: p, cmd: exec.CommandContext(p.ctx, must(os.Executable()), args...)}
	c.cmd.Stderr = os.Stderr
	c.cmd.Env = append(os.Environ(), env...)
	c.in = must(c.cmd.StdinPipe())
	c.out = json.NewDecoder(must(c.cmd.StdoutPipe()))
	p.check(c.cmd.Start())
	p.Cleanup(func() { _ = c.close() })
	c.Address = c.read().Address
	return c
}

func (c *process) read() (r reply) {
	if err := c.out.Decode(&r); err != nil {
		c.p.Fatalf("%v: %v", c.cmd.Args[1:], err)
	}
	if r.Error != "" {
		c.p.Fatalf("%v: %s", c.cmd.Args[1:], r.Error)
	}
	return r
}

// ask sends a command and returns the answer.
func (c *process) ask(command string) reply {
	_, err := fmt.Fprintln(c.in, command)
	c.p.check(err)
	return c.read()
}

// resident returns how much memory the process has, in bytes.
func (c *process) resident() int64 { return must(memory(c.cmd.Process.Pid, "VmRSS:")) }

// client returns a client of the room that the process is.
func (c *process) client() marchv1.IDServiceClient {
	if c.ids == nil {
		c.ids = marchv1.NewIDServiceClient(c.p.dial(c.Address))
	}
	return c.ids
}

// memory returns an amount of memory that the system tells of a process, in bytes.
func memory(pid int, what string) (int64, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(status)) {
		if kib, ok := strings.CutPrefix(line, what); ok {
			n, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(kib), " kB"), 10, 64)
			return n << 10, err
		}
	}
	return 0, errors.New("no " + what)
}

// close ends the process. It may be called again.
func (c *process) close() error {
	_ = c.in.Close()
	return c.cmd.Wait()
}

// child runs this program as one process of a measurement.
func child(name string, args []string) error {
	kinds := map[string]func([]string) (address string, answer func(command string) reply, end func() error, err error){
		"child-room": childRoom, "child-attack": childAttack, "child-etcd": childEtcd,
	}
	if kinds[name] == nil {
		return fmt.Errorf("unknown: %s", name)
	}
	address, answer, end, err := kinds[name](args)
	if err != nil {
		return err
	}
	out := json.NewEncoder(os.Stdout)
	if err := out.Encode(reply{Address: address}); err != nil {
		return err
	}
	for commands := bufio.NewScanner(os.Stdin); commands.Scan(); {
		if err := out.Encode(answer(commands.Text())); err != nil {
			return err
		}
	}
	return end()
}

// goodCaller is the address of the good caller, and badCaller begins the addresses of others.
const (
	goodCaller = "127.0.0.9"
	badCaller  = "127.0.1."
)

// quiet is how long nothing must be leased once all tags are idle. A chain leases a second
// segment at the room's next look, each 30 s or a little later. A garbage collection beside
// such leases counts their garbage as in use.
const quiet = 35 * time.Second

// startRoom starts a room in a process of its own. The room answers the commands that it reads:
// load makes and uses its tags, memory waits until they are idle and returns the size of its
// heap, around uses all of it, times returns the times of calls, midnight sets its clock. env is added to this
// program's environment.
func (p *part) startRoom(tags int, env ...string) *process {
	return p.start(env, "child-room", strconv.Itoa(tags))
}

// childRoom serves a room: of a store in memory with so many tags, or of the etcd at an address.
func childRoom(args []string) (address string, answer func(string) reply, end func() error, err error) {
	c := &roomChild{}
	if c.tags, err = strconv.Atoi(args[0]); err != nil {
		return "", nil, nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	cfg := room.DefaultConfig()
	if cfg.Ledger, err = c.ledger(ctx, args[1:]); err != nil {
		stop()
		return "", nil, nil, err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		stop()
		return "", nil, nil, err
	}
	c.timed = &timedListener{Listener: listener, caller: goodCaller}
	cfg.Room, cfg.Name, cfg.GRPC = "a", "a1", c.timed
	cfg.IdleAfter = 24 * time.Hour
	cfg.Metrics = serve.NewMetrics("scale", prometheus.Labels{"room": "a"})
	address = listener.Addr().String()
	cfg.Advertise = address
	server, err := room.New(cfg)
	if err != nil {
		stop()
		return "", nil, nil, err
	}
	done := make(chan error, 1)
	go func() { done <- server.Run(ctx) }()
	end = func() error {
		stop()
		return errors.Join(<-done, cfg.Ledger.Close())
	}
	for server.Ready() != nil {
		select {
		case err := <-done:
			stop()
			return "", nil, nil, err
		case <-time.After(10 * time.Millisecond):
		}
	}
	return address, func(command string) reply { return c.answer(ctx, command) }, end, nil
}

// roomChild is a room in this process.
type roomChild struct {
	tags  int
	store *flatStore   // nil if there is an etcd
	ahead atomic.Int64 // by which the room's clock is ahead
	timed *timedListener
}

// ledger returns a ledger over the etcd at an address, or over a cluster of one room in memory.
func (c *roomChild) ledger(ctx context.Context, etcd []string) (*ledger.Ledger, error) {
	cfg := ledger.DefaultConfig()
	cfg.Now = func() time.Time { return time.Now().Add(time.Duration(c.ahead.Load())) }
	if len(etcd) > 0 {
		s, err := store.NewEtcd(store.EtcdConfig{Endpoints: etcd})
		if err != nil {
			return nil, err
		}
		return ledger.New(s, cfg)
	}
	c.store = newFlatStore(c.tags)
	l, err := ledger.New(c.store, cfg)
	if err != nil {
		return nil, err
	}
	own := admin.New(l, admin.DefaultConfig())
	if _, err := own.Init(ctx, onlyRoom, "scale"); err != nil {
		return nil, err
	}
	if _, err := own.CreateTag(ctx, "order", record.DefaultTag(), "scale"); err != nil {
		return nil, err
	}
	for key, kv := range c.store.keys {
		if strings.HasSuffix(key, "/tags/order") {
			c.store.tag = kv.Value
		}
	}
	return l, nil
}

// onlyRoom is the layout of a cluster with one room.
var onlyRoom = allocator.Layout{Boundary: 1000,
	Ranges: map[allocator.Room]allocator.Range{"a": {Lower: 0, Upper: 1000}}}

// answer answers a command.
func (c *roomChild) answer(ctx context.Context, command string) (r reply) {
	name, argument, _ := strings.Cut(command, " ")
	switch name {
	case "load":
		if err := loadTags(ctx, c.timed.Addr().String(), c.tags); err != nil {
			r.Error = err.Error()
		}
	case "memory":
		c.store.settle(quiet)
		debug.FreeOSMemory() // collects first
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		r.Heap = m.HeapAlloc + m.StackInuse
	case "around": // allocates until each page of the heap was used, as in a process that runs for hours
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		var page []byte // outside of the loop, so that each is allocated
		for cycles := m.NumGC + 2; m.NumGC < cycles; runtime.ReadMemStats(&m) {
			for range 1000 {
				page = make([]byte, 1<<10)
			}
		}
		sink.Store(int64(len(page)))
	case "times":
		times := c.timed.take()
		r.Calls, r.P99, r.P999 = len(times), percentile(times, 0.99), percentile(times, 0.999)
	case "midnight": // in so long it is the next one by the room's clock
		before, err := time.ParseDuration(argument)
		if err != nil {
			r.Error = err.Error()
			break
		}
		now := time.Now().Add(time.Duration(c.ahead.Load()))
		border := now.Add(before).UTC().Truncate(24 * time.Hour).Add(24 * time.Hour)
		c.ahead.Add(int64(border.Add(-before).Sub(now)))
	default:
		r.Error = "unknown command " + command
	}
	return r
}
