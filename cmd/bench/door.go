package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os/exec"
	"regexp"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/admin"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/cmd/internal/load"
	"github.com/march-id/march/internal/foreign"
	"github.com/march-id/march/room"
	"github.com/march-id/march/room/door"
	"github.com/march-id/march/room/tinyid"
)

// doorClients is how many clients redis-benchmark has.
const doorClients = 50

// doorRows measures a room's door for Redis clients against Redis itself. redis-benchmark calls
// both over TCP.
func doorRows(ctx context.Context, b *bench) error {
	rows := []struct {
		rate, p99 *row
		pipeline  int
		trial     int
	}{
		{b.add(row{what: "door for Redis, INCR, 50 clients", unit: "/s", goal: 0.95}),
			b.add(row{what: "  its p99", unit: "ms", goal: 1.5, atMost: true}), 1, 50_000},
		{b.add(row{what: "door for Redis, INCR, pipelines of 16", unit: "/s", goal: 1}), nil, 16, 500_000},
	}
	if !installed("redis-server", "redis-benchmark") {
		for _, r := range rows {
			if err := b.leaveOut(r.rate, "redis-server and redis-benchmark"); err != nil {
				return err
			}
		}
		return b.leaveOut(rows[0].p99, "redis-server and redis-benchmark")
	}
	d, stopDoor, err := startDoor(ctx)
	if err != nil {
		return err
	}
	defer stopDoor()
	redis, stopRedis, err := startRedis(ctx)
	if err != nil {
		return err
	}
	defer stopRedis()
	for range b.rounds {
		for _, r := range rows {
			requests := int(float64(r.trial) * 2 * b.unit.Seconds())
			rate, p99, err := incrRate(ctx, d.Redis.Addr().String(), r.pipeline, requests)
			if err != nil {
				return err
			}
			yardRate, yardP99, err := incrRate(ctx, redis, r.pipeline, requests)
			if err != nil {
				return err
			}
			r.rate.measured, r.rate.yard = append(r.rate.measured, rate), append(r.rate.yard, yardRate)
			if r.p99 != nil {
				r.p99.measured, r.p99.yard = append(r.p99.measured, p99), append(r.p99.yard, yardP99)
			}
		}
	}
	return nil
}

// webDoorRows measures the doors over HTTP against a door with an empty handler, in the same
// process.
func webDoorRows(ctx context.Context, b *bench) error {
	empty := "/empty"
	calls := []struct {
		*row
		method, path string
		at           func(*doors) net.Listener
	}{
		{&row{what: "door for Leaf, one ID"}, "GET", "/api/segment/get/" + doorKey, func(d *doors) net.Listener {
			return d.Leaf
		}},
		{&row{what: "door for TinyId, one ID"}, "POST", "/tinyid/id/nextIdSimple?token=bench&bizType=" + doorKey,
			func(d *doors) net.Listener {
				return d.TinyID
			}},
		{&row{what: "door for TinyId, a segment"}, "POST",
			"/tinyid/id/nextSegmentIdSimple?token=bench&bizType=" + doorKey, func(d *doors) net.Listener {
				return d.TinyID
			}},
		{&row{what: "door for CosId, a segment of 20"}, "PATCH", "/segments/bench/" + doorKey + "?step=20",
			func(d *doors) net.Listener {
				return d.CosID
			}},
	}
	for k := range calls {
		calls[k].unit, calls[k].goal = "/s", 0.9
		calls[k].row = b.add(*calls[k].row)
	}
	d, stop, err := startDoor(ctx)
	if err != nil {
		return err
	}
	defer stop()
	for range b.rounds {
		for _, c := range calls {
			yard, err := d.rate(ctx, b, c.method, d.empty, empty)
			if err != nil {
				return err
			}
			measured, err := d.rate(ctx, b, c.method, c.at(d), c.path)
			if err != nil {
				return err
			}
			c.yard, c.measured = append(c.yard, yard), append(c.measured, measured)
		}
	}
	return nil
}

// doors are the doors of a room, and one with an empty handler.
type doors struct {
	room.Doors
	empty net.Listener
}

func (d *doors) rate(ctx context.Context, b *bench, method string, at net.Listener, path string) (float64, error) {
	p := &posts{method: method, address: at.Addr().String(), path: path}
	defer p.close()
	r, err := measure(ctx, load.Config{Duration: 2 * b.unit, New: p.caller})
	return r.CallsPerSecond(), err
}

// doorKey is the key that redis-benchmark increments.
const doorKey = "counter:__rand_int__"

// startDoor runs a room with doors, and creates the tags that their callers use.
func startDoor(ctx context.Context) (d *doors, stop func(), err error) {
	c, err := startCluster(ctx)
	if err != nil {
		return nil, nil, err
	}
	l, _, err := c.ledger()
	if err != nil {
		c.close()
		return nil, nil, err
	}
	cfg := room.DefaultConfig()
	settings := record.DefaultTag()
	settings.MinStep = 1_000_000
	for _, key := range []string{doorKey, "bench." + doorKey} {
		var tag allocator.Tag
		if err == nil {
			tag, err = foreign.Tag(key)
		}
		if err == nil {
			_, err = admin.New(l, admin.DefaultConfig()).CreateTag(ctx, tag, settings, "bench")
		}
		cfg.WarmTags = append(cfg.WarmTags, tag)
	}
	d = &doors{}
	d.TinyIDTokens = tinyid.AnyToken("bench")
	cfg.Room, cfg.Name, cfg.Ledger = "a", "door", l
	for _, at := range []*net.Listener{&cfg.GRPC, &d.Redis, &d.Leaf, &d.TinyID, &d.CosID, &d.empty} {
		if err == nil {
			*at, err = net.Listen("tcp", "127.0.0.1:0")
		}
	}
	cfg.Doors = d.Doors
	var server *room.Server
	if err == nil {
		server, err = room.New(cfg)
	}
	if err != nil {
		_ = l.Close()
		c.close()
		return nil, nil, err
	}
	running, cancel := context.WithCancel(ctx)
	group, running := errgroup.WithContext(running)
	group.Go(func() error { return server.Run(running) })
	group.Go(func() error {
		return door.NewHTTP("empty", http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})).Run(
			running, d.empty)
	})
	stop = func() {
		cancel()
		_ = group.Wait()
		_ = l.Close()
		c.close()
	}
	if err := await(ctx, func() bool { return server.Ready() == nil || running.Err() != nil }); err != nil {
		stop()
		return nil, nil, err
	}
	return d, stop, nil
}

// startRedis runs a Redis that writes nothing to disk.
func startRedis(ctx context.Context) (address string, stop func(), err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0") // to find a free port
	if err != nil {
		return "", nil, err
	}
	address = l.Addr().String()
	_, port, err := net.SplitHostPort(address)
	_ = l.Close()
	if err != nil {
		return "", nil, err
	}
	server := exec.CommandContext(ctx, "redis-server", "--port", port, "--bind", "127.0.0.1",
		"--save", "", "--appendonly", "no")
	if err := server.Start(); err != nil {
		return "", nil, err
	}
	stop = func() {
		_ = server.Process.Kill()
		_ = server.Wait()
	}
	if err := await(ctx, func() bool { return dial("tcp", address) }); err != nil {
		stop()
		return "", nil, err
	}
	return address, stop, nil
}

// incrCSV matches the rate and the p99 in milliseconds.
var incrCSV = regexp.MustCompile(`"INCR","([0-9.]+)","[0-9.]+","[0-9.]+","[0-9.]+","[0-9.]+","([0-9.]+)"`)

func incrRate(ctx context.Context, address string, pipeline, requests int) (rate, p99 float64, err error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return 0, 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, "redis-benchmark", "-h", host, "-p", port, "-c", strconv.Itoa(doorClients),
		"-P", strconv.Itoa(pipeline), "-n", strconv.Itoa(requests), "-t", "incr", "--csv").CombinedOutput()
	match := incrCSV.FindSubmatch(out)
	if err != nil || match == nil {
		return 0, 0, fmt.Errorf("redis-benchmark: %w: %s", err, out)
	}
	if rate, err = strconv.ParseFloat(string(match[1]), 64); err != nil {
		return 0, 0, err
	}
	p99, err = strconv.ParseFloat(string(match[2]), 64)
	return rate, p99, err
}
