package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/admin"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
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
// heap, times returns the times of calls, midnight sets its clock. env is added to this
// program's environment.
func startRoom(ctx context.Context, tags int, env ...string) (*process, error) {
	return startChild(ctx, env, "child-room", strconv.Itoa(tags))
}

// childRoom serves a room until its standard input ends: of a store in memory with so many
// tags, or of the etcd at an address.
func childRoom(args []string) error {
	tags, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	r := &roomChild{tags: tags}
	cfg := ledger.DefaultConfig()
	cfg.Now = func() time.Time { return time.Now().Add(time.Duration(r.ahead.Load())) }
	var l *ledger.Ledger
	if len(args) > 1 {
		etcd, err := store.NewEtcd(store.EtcdConfig{Endpoints: []string{args[1]}})
		if err != nil {
			return err
		}
		if l, err = ledger.New(etcd, cfg); err != nil {
			return errors.Join(err, etcd.Close())
		}
	} else {
		r.store = newFlatStore(tags)
		if l, err = r.store.cluster(ctx, cfg); err != nil {
			return err
		}
	}
	defer func() { _ = l.Close() }()
	return r.serve(ctx, stop, l)
}

// cluster makes a cluster of one room in the store, and returns its ledger.
func (s *flatStore) cluster(ctx context.Context, cfg ledger.Config) (*ledger.Ledger, error) {
	l, err := ledger.New(s, cfg)
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
	for key, kv := range s.keys {
		if strings.HasSuffix(key, "/tags/order") {
			s.tag = kv.Value
		}
	}
	return l, nil
}

// onlyRoom is the layout of a cluster with one room.
var onlyRoom = allocator.Layout{Boundary: 1000,
	Ranges: map[allocator.Room]allocator.Range{"a": {Lower: 0, Upper: 1000}}}

// roomChild is a room in this process.
type roomChild struct {
	tags  int
	store *flatStore   // nil if there is an etcd
	ahead atomic.Int64 // by which the room's clock is ahead
	timed *timedListener
}

// serve runs the room, and answers commands.
func (c *roomChild) serve(ctx context.Context, stop func(), l *ledger.Ledger) error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	c.timed = &timedListener{Listener: listener, caller: goodCaller}
	cfg := room.DefaultConfig()
	cfg.Room, cfg.Name, cfg.Ledger, cfg.GRPC = "a", "a1", l, c.timed
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
		if err := say.Encode(c.answer(ctx, commands.Text())); err != nil {
			return err
		}
	}
	stop()
	return <-done
}

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

// lowest gives this process the lowest priority.
func lowest() error { return syscall.Setpriority(syscall.PRIO_PROCESS, 0, 19) }
