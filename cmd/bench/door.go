package main

import (
	"context"
	"fmt"
	"net"
	"os/exec"
	"regexp"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/march-id/march/allocator/ledger/admin"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/room"
	"github.com/march-id/march/room/foreign"
)

// doorClients is how many clients redis-benchmark has.
const doorClients = 50

// doorRows measures a room's door for Redis clients against Redis itself, both over TCP,
// called by redis-benchmark.
func doorRows(ctx context.Context, b *bench) error {
	rows := []struct {
		rate, p99 *row
		pipeline  int
		trial     int
	}{
		{b.add(row{what: "door for Redis, INCR, 50 clients", unit: "/s", goal: 0.95}), b.add(row{what: "  its p99", unit: "ms", goal: 1.5, atMost: true}), 1, 50_000},
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
	door, stopDoor, err := startDoor(ctx)
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
			rate, p99, err := incrRate(ctx, door, r.pipeline, requests)
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

// startDoor runs a room with a door, and the tag that redis-benchmark counts with.
func startDoor(ctx context.Context) (address string, stop func(), err error) {
	c, err := startCluster(ctx)
	if err != nil {
		return "", nil, err
	}
	l, _, err := c.ledger()
	if err != nil {
		c.close()
		return "", nil, err
	}
	tag, err := foreign.Tag("counter:__rand_int__")
	if err == nil {
		settings := record.DefaultTag()
		settings.MinStep = 1_000_000
		_, err = admin.New(l, admin.DefaultConfig()).CreateTag(ctx, tag, settings, "bench")
	}
	var listeners [2]net.Listener
	for i := range listeners {
		if err == nil {
			listeners[i], err = net.Listen("tcp", "127.0.0.1:0")
		}
	}
	cfg := room.DefaultConfig()
	cfg.Room, cfg.Name, cfg.Ledger, cfg.GRPC, cfg.Doors.Redis, cfg.WarmTags = "a", "door", l, listeners[0], listeners[1], append(cfg.WarmTags, tag)
	var server *room.Server
	if err == nil {
		server, err = room.New(cfg)
	}
	if err != nil {
		_ = l.Close()
		c.close()
		return "", nil, err
	}
	running, cancel := context.WithCancel(ctx)
	group, running := errgroup.WithContext(running)
	group.Go(func() error { return server.Run(running) })
	stop = func() {
		cancel()
		_ = group.Wait()
		_ = l.Close()
		c.close()
	}
	if err := await(ctx, func() bool { return server.Ready() == nil || running.Err() != nil }); err != nil {
		stop()
		return "", nil, err
	}
	return listeners[1].Addr().String(), stop, nil
}

// startRedis runs a Redis that writes nothing to disk.
func startRedis(ctx context.Context) (address string, stop func(), err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0") // for a port that is free
	if err != nil {
		return "", nil, err
	}
	address = l.Addr().String()
	_, port, err := net.SplitHostPort(address)
	_ = l.Close()
	if err != nil {
		return "", nil, err
	}
	server := exec.CommandContext(ctx, "redis-server", "--port", port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no")
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

// incrCSV has the rate, and the p99 in milliseconds.
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
