package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/admin"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/internal/observe"
	"github.com/march-id/march/room"
)

// child runs this program as one process of a measurement.
func child(name string, args []string) error {
	signal.Ignore(os.Interrupt) // its parent ends it
	switch name {
	case "child-room":
		return childRoom(args)
	case "child-attack":
		return childAttack(args)
	case "child-etcd":
		return childEtcd(args)
	}
	return fmt.Errorf("unknown: %s", name)
}

// goodCaller is the address of the good caller, and badCallers begins the addresses of others.
const (
	goodCaller = "127.0.0.9"
	badCaller  = "127.0.1."
)

// quiet is how long nothing must be leased once all tags are idle. A chain leases a second
// segment at the room's next look, each 10 s or a little later. A garbage collection beside
// such leases counts their garbage as in use.
const quiet = 25 * time.Second

// startRoom starts a room in a process of its own. The room answers the commands that it reads:
// load makes and uses its tags, memory waits until they are idle and returns the size of its
// heap, times returns the times of calls. env is added to this program's environment.
func startRoom(ctx context.Context, tags int, env ...string) (*process, error) {
	return startChild(ctx, env, "child-room", strconv.Itoa(tags))
}

// childRoom serves a room until its standard input ends.
func childRoom(args []string) error {
	tags, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	store := newFlatStore(tags)
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	l, err := ledger.New(store, ledger.DefaultConfig())
	if err != nil {
		return err
	}
	own := admin.New(l, admin.DefaultConfig())
	layout := allocator.Layout{Boundary: 1000, Ranges: map[allocator.Room]allocator.Range{"a": {Lower: 0, Upper: 1000}}}
	if _, err := own.Init(ctx, layout, "scale"); err != nil {
		return err
	}
	if _, err := own.CreateTag(ctx, "order", record.DefaultTag(), "scale"); err != nil {
		return err
	}
	for key, kv := range store.keys {
		if strings.HasSuffix(key, "/tags/order") {
			store.tag = kv.Value
		}
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	timed := &timedListener{Listener: listener, caller: goodCaller}
	cfg := room.DefaultConfig()
	cfg.Room, cfg.Name, cfg.Ledger, cfg.GRPC = "a", "a1", l, timed
	cfg.IdleAfter = 24 * time.Hour
	cfg.Metrics = observe.New("scale", prometheus.Labels{"room": "a"})
	cfg.Advertise = listener.Addr().String()
	server, err := room.New(cfg)
	if err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() { done <- server.Run(ctx) }()
	for server.Ready() != nil {
		select {
		case err := <-done:
			return err
		case <-time.After(10 * time.Millisecond):
		}
	}
	say := json.NewEncoder(os.Stdout)
	if err := say.Encode(reply{Address: listener.Addr().String()}); err != nil {
		return err
	}
	commands := bufio.NewScanner(os.Stdin)
	for commands.Scan() {
		r := reply{}
		switch commands.Text() {
		case "load":
			if err := loadTags(ctx, listener.Addr().String(), tags); err != nil {
				r.Error = err.Error()
			}
		case "memory":
			store.settle(quiet)
			debug.FreeOSMemory() // collects first
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			r.Heap = m.HeapAlloc + m.StackInuse
		case "times":
			times := timed.take()
			r.Calls, r.P99, r.P999 = len(times), percentile(times, 0.99), percentile(times, 0.999)
		default:
			r.Error = "unknown command " + commands.Text()
		}
		if err := say.Encode(r); err != nil {
			return err
		}
	}
	stop()
	return <-done
}

// lowest gives this process the lowest priority.
func lowest() error { return syscall.Setpriority(syscall.PRIO_PROCESS, 0, 19) }
