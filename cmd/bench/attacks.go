package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/testcluster"
)

// attack is what a bad caller does.
type attack struct {
	name, what string
	run        func(ctx context.Context, counts *counts, address string) error
	least      pressure // what it does where it gets the processor time that it needs
	times      float64  // how much longer a good caller may wait beside it, at the 99th percentile
}

// pressure is what an attacker did beside a measurement.
type pressure struct {
	sent, answered float64 // a second
	total          int64   // sent since it began
	waiting        int64   // of that, what is not answered
}

// reaches reports whether p is at least as much as other.
func (p pressure) reaches(other pressure) bool {
	return p.sent >= other.sent && p.answered >= other.answered && p.total >= other.total &&
		(p.waiting >= other.waiting || other.waiting == 0) // a stream that is refused may be answered twice
}

func (p pressure) String() string {
	return fmt.Sprintf("%.3g requests/s, %.3g answers/s; %d requests in all, %d without an answer", p.sent,
		p.answered, p.total, p.waiting)
}

// attackKinds are the measured attacks. Each must do at least a fraction of what it does on an
// idle machine of two processors. For eager streams of many callers that is what they ask and what waits: the
// room decides how much of it it answers.
var attackKinds = []attack{
	{"resets", "rapid reset on 4 connections", resets, pressure{sent: 10_000}, 10},
	{"silent", "60,000 silent streams on one connection", silent, pressure{total: 60_000}, 5},
	{"eager", "500 eager streams of one caller, opened again where refused", eager, pressure{sent: 10_000}, 5},
	{"reopened", "500 eager streams of one caller, opened again without a pause", reopener, pressure{sent: 1_000}, 5},
	{"callers", "500 eager streams of 50 callers", eagerCallers, pressure{total: 500_000, waiting: 100_000}, 5},
	{"deaf", "500 eager streams of one caller that reads no answer", deaf, pressure{total: 10_000}, 5},
	{"unknown", "2,000 callers of unknown tags", unknownTags, pressure{total: 2_000}, 5},
}

// halfTheProcessors is the environment setting with which a Go program uses half of the
// processors. The room has one half, the attacker the other, as if each had a machine of its
// own. If both use all processors, the kernel takes the room's threads off them for 4 to 12 ms
// at a time, and the row measures the kernel.
func halfTheProcessors() string { return fmt.Sprint("GOMAXPROCS=", max(1, runtime.NumCPU()/2)) }

// attacks are a part for each attack.
func attacks() (parts []measurement) {
	for _, a := range attackKinds {
		parts = append(parts, measurement{"attack " + a.name, func(p *part) { p.attack(a) }})
	}
	return parts
}

// attack measures a good caller beside an attack, against the same caller alone, and the
// memory that the room takes. The good caller opens new connections beside the attack, and a call of it that is
// refused ends the run.
func (p *part) attack(a attack) {
	const tags = 10
	during := time.Duration(p.seconds) * time.Second
	room := p.startRoom(tags, halfTheProcessors())
	room.ask("load")
	times := &row{what: "p99 in the server beside " + a.what + " to alone", goal: a.times, atMost: true, unit: "s"}
	memory := &row{what: "memory of the room beside " + a.what, goal: 256, atMost: true, unit: "MiB"}
	most := int64(0)
	var weakest pressure
	weak := 0
	for len(times.measured) < p.rounds && weak < p.rounds {
		alone := p.times(during, p.caller(room, tags))[0]
		beside, did, resident := p.besideAttack(room, a.name, tags, during)
		if !did.reaches(a.least) {
			weakest, weak = did, weak+1
			continue
		}
		times.yards = append(times.yards, alone.P99.Seconds())
		times.measured = append(times.measured, beside.P99.Seconds())
		most = max(most, resident)
	}
	if memory.measured = []float64{float64(most) / (1 << 20)}; len(times.measured) < p.rounds {
		times.void = fmt.Sprintf("in %d of %d rounds the attacker did too little: %v; it should do: %v", weak,
			weak+len(times.measured), weakest, a.least)
		times.measured, memory.measured, memory.void = nil, nil, "as above"
	}
	p.add(times, memory)
	p.check(room.close())
}

// besideAttack measures a good caller while another process attacks.
func (p *part) besideAttack(room *process, kind string, busy int, during time.Duration) (r reply, did pressure,
	resident int64) {
	attacker := p.start([]string{halfTheProcessors()}, "child-attack", kind, room.Address)
	time.Sleep(2 * time.Second) // the attack is under way
	watching, watched := make(chan struct{}), make(chan int64, 1)
	go func() {
		var most int64
		for {
			if now, err := memory(room.cmd.Process.Pid, "VmRSS:"); err == nil {
				most = max(most, now)
			}
			select {
			case <-watching:
				watched <- most
				return
			case <-time.After(50 * time.Millisecond):
			}
		}
	}()
	stop := sync.OnceFunc(func() { close(watching) })
	p.Cleanup(stop)
	before, began := attacker.ask("counts"), time.Now()
	r = p.times(during, p.caller(room, busy))[0]
	stop()
	after := attacker.ask("counts")
	took := time.Since(began).Seconds()
	did.sent, did.answered = float64(after.Sent-before.Sent)/took, float64(after.Answered-before.Answered)/took
	did.total, did.waiting = after.Sent, after.Sent-after.Answered
	p.check(attacker.close())
	return r, did, <-watched
}

// childAttack attacks the room at an address. It answers the command counts.
func childAttack(args []string) (address string, answer func(string) reply, end func() error, err error) {
	threads, err := os.ReadDir("/proc/self/task") // those that these start are no more urgent
	for _, thread := range threads {
		if id, _ := strconv.Atoi(thread.Name()); err == nil {
			err = syscall.Setpriority(syscall.PRIO_PROCESS, id, 19)
		}
	}
	if err != nil {
		return "", nil, nil, err
	}
	i := slices.IndexFunc(attackKinds, func(a attack) bool { return a.name == args[0] })
	if i < 0 {
		return "", nil, nil, fmt.Errorf("unknown attack %q", args[0])
	}
	counts, failed := &counts{}, make(chan error, 1)
	go func() { failed <- attackKinds[i].run(context.Background(), counts, args[1]) }() // ends with the process
	return "", func(string) reply {
		select {
		case err := <-failed:
			return reply{Error: fmt.Sprintf("the attack ended: %v", err)}
		default:
			return reply{Sent: counts.sent.Load(), Answered: counts.answered.Load()}
		}
	}, func() error { return nil }, nil
}

// The attackers go on whatever the server answers, and open another connection if one was
// closed. They count what they do: an attacker without a processor does no harm, and its row
// would say nothing about the room.

// counts are an attacker's actions. A message counts as sent when the kernel has it, so that it
// does not wait in the attacker.
type counts struct{ sent, answered atomic.Int64 }

// dialRaw connects an attacker, which calls one method in all of its streams. Answers are counted and discarded.
func dialRaw(ctx context.Context, counts *counts, address, method string) (*testcluster.Frames, error) {
	conn, err := testcluster.DialFrom(ctx, badCaller+"1", address)
	if err != nil {
		return nil, err
	}
	c, err := testcluster.NewFrames(conn, method)
	if err != nil {
		return nil, err
	}
	go func() { // ends with the connection
		for {
			frame, err := c.ReadFrame()
			if err != nil {
				return
			}
			if h := frame.Header(); h.Type == http2.FrameRSTStream || endsStream(h) {
				counts.answered.Add(1)
			}
		}
	}()
	return c, nil
}

// atOnce is how many streams an attacker opens before it sends them.
const atOnce = 100

// countedConn counts the messages on a connection of gRPC: each message of this program fits
// one frame.
type countedConn struct {
	net.Conn
	counts  *counts
	in, out frameParser
}

// Read implements net.Conn.
func (c *countedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.counts.answered.Add(messages(&c.in, b[:n]))
	return n, err
}

// Write implements net.Conn.
func (c *countedConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.counts.sent.Add(messages(&c.out, b[:n]))
	return n, err
}

// messages returns how many frames with messages begin in b. p parses b.
func messages(p *frameParser, b []byte) (n int64) {
	p.parse(b, func(h http2.FrameHeader) {
		if h.Type == http2.FrameData {
			n++
		}
	})
	return n
}

// dialCounted returns a connection of gRPC from an address that counts its messages.
func dialCounted(counts *counts, address, from string) (*grpc.ClientConn, error) {
	return dialFrom(address, from, func(conn net.Conn) net.Conn {
		return &countedConn{Conn: conn, counts: counts, out: fromClient()}
	})
}

// pause is how long an attacker waits after a failure, but for one that does not.
const pause = 10 * time.Millisecond

// forever calls try again and again, with a pause after a failure.
func forever(ctx context.Context, pause time.Duration, try func() error) error {
	for ctx.Err() == nil {
		if err := try(); err != nil {
			time.Sleep(pause)
		}
	}
	return ctx.Err()
}

// resets opens streams and resets them at once, on four connections.
func resets(ctx context.Context, counts *counts, address string) error {
	group, ctx := errgroup.WithContext(ctx)
	for range 4 {
		group.Go(func() error {
			return forever(ctx, pause, func() error {
				c, err := dialRaw(ctx, counts, address, marchv1.IDService_Next_FullMethodName)
				if err != nil {
					return err
				}
				defer func() { _ = c.Conn.Close() }()
				for ; ; counts.sent.Add(atOnce) {
					for range atOnce {
						_ = c.WriteRSTStream(c.Open(), http2.ErrCodeCancel)
					}
					if err := c.Flush(); err != nil {
						return err
					}
				}
			})
		})
	}
	return group.Wait()
}

// silent opens 60,000 streams on one connection, and sends nothing on them.
func silent(ctx context.Context, counts *counts, address string) error {
	return forever(ctx, pause, func() error {
		c, err := dialRaw(ctx, counts, address, marchv1.IDService_Stream_FullMethodName)
		if err != nil {
			return err
		}
		defer func() { _ = c.Conn.Close() }()
		for range 60_000 / atOnce {
			for range atOnce {
				c.Open()
			}
			if err := c.Flush(); err != nil {
				return err
			}
			counts.sent.Add(atOnce)
		}
		<-ctx.Done()
		return nil
	})
}

// eager sends requests on 500 streams of 10 connections as fast as it can, and reads the
// answers.
func eager(ctx context.Context, counts *counts, address string) error {
	return eagerStreams(ctx, counts, address, 1, true, pause)
}

// reopener is eager, and opens a stream that was refused again without a pause.
func reopener(ctx context.Context, counts *counts, address string) error {
	return eagerStreams(ctx, counts, address, 1, true, 0)
}

// eagerCallers is eager, from 50 addresses.
func eagerCallers(ctx context.Context, counts *counts, address string) error {
	return eagerStreams(ctx, counts, address, 50, true, pause)
}

// deaf is eager, but reads no answer.
func deaf(ctx context.Context, counts *counts, address string) error {
	return eagerStreams(ctx, counts, address, 1, false, pause)
}

// eagerStreams has 500 streams on ten connections, or on one of each caller. It opens a stream that was refused
// again, after a pause.
func eagerStreams(ctx context.Context, counts *counts, address string, callers int, read bool,
	pause time.Duration) error {
	conns := max(10, callers)
	streams := 500 / conns
	group, ctx := errgroup.WithContext(ctx)
	for n := range conns {
		conn, err := dialCounted(counts, address, fmt.Sprint(badCaller, n%callers+1))
		if err != nil {
			return err
		}
		client := marchv1.NewIDServiceClient(conn)
		for k := range streams {
			group.Go(func() error {
				return forever(ctx, pause, func() error {
					stream, err := client.Stream(ctx)
					if err != nil {
						return err
					}
					go func() {
						for read {
							if _, err := stream.Recv(); err != nil {
								return
							}
						}
					}()
					for {
						if err := stream.Send(&marchv1.NextRequest{Tag: string(tagName(k % 10))}); err != nil {
							return err
						}
					}
				})
			})
		}
	}
	return group.Wait()
}

// unknownTags makes 2,000 callers at 100 addresses ask for tags that do not exist, half of them
// always for the same one.
func unknownTags(ctx context.Context, counts *counts, address string) error {
	const addresses, each = 100, 20
	group, ctx := errgroup.WithContext(ctx)
	for a := range addresses {
		conn, err := dialCounted(counts, address, fmt.Sprint(badCaller, a+1))
		if err != nil {
			return err
		}
		client := marchv1.NewIDServiceClient(conn)
		for k := range each {
			group.Go(func() error {
				for i := 0; ; i++ {
					tag := fmt.Sprintf("unknown-%d-%d", a, k)
					if k%2 == 0 {
						tag = fmt.Sprintf("unknown-%d-%d-%d", a, k, i)
					}
					_, err := client.Next(ctx, &marchv1.NextRequest{Tag: tag})
					if ctx.Err() != nil {
						return err
					}
				}
			})
		}
	}
	return group.Wait()
}
