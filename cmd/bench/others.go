package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/internal/foreign"
	"github.com/march-id/march/internal/programs"
	"github.com/march-id/march/internal/testcluster"
	"github.com/march-id/march/internal/testservers"
	"github.com/march-id/march/room"
	"github.com/march-id/march/room/door"
	"github.com/march-id/march/room/tinyid"
)

// streamed is Stream as the part gRPC measured it, one round after the other.
func (p *part) streamed() func() float64 {
	if len(p.stream) == 0 {
		p.Skip("the part gRPC was not chosen")
	}
	round := -1
	return func() float64 {
		round++
		return p.stream[round]
	}
}

// output runs a program of another system, and returns the numbers that a pattern finds in its output.
func (p *part) output(pattern *regexp.Regexp, name string, args ...string) (found []float64) {
	ctx, cancel := context.WithTimeout(p.ctx, time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
	match := pattern.FindSubmatch(out)
	if err != nil || match == nil {
		p.Fatalf("%s: %v: %s", name, err, out)
	}
	for _, number := range match[1:] {
		found = append(found, must(strconv.ParseFloat(string(number), 64)))
	}
	return found
}

// incrCSV matches the rate and the p99 in milliseconds.
var incrCSV = regexp.MustCompile(`"INCR","([0-9.]+)","[0-9.]+","[0-9.]+","[0-9.]+","[0-9.]+","([0-9.]+)"`)

// incr calls INCR.
func (p *part) incr(clients, pipeline, requests int, server ...string) (rate, p99 float64) {
	found := p.output(incrCSV, programs.Find(p, "redis-benchmark"), append(server, "-c", strconv.Itoa(clients), "-P",
		strconv.Itoa(pipeline), "-n", strconv.Itoa(requests), "-t", "incr", "--csv")...)
	return found[0], found[1]
}

// port returns a port at which nothing listens.
func (p *part) port() int {
	l := must(net.Listen("tcp", "127.0.0.1:0"))
	defer func() { _ = l.Close() }()
	return l.Addr().(*net.TCPAddr).Port //nolint:errcheck // of TCP it is that
}

// redisRows measures INCR with as many clients as Stream has workers. Each has one request
// under way at a time.
func redisRows(p *part) {
	socket := filepath.Join(p.TempDir(), "redis.sock")
	programs.Find(p, "redis-benchmark")
	testservers.Redis(p, p.port(), "--unixsocket", socket)
	p.measure(p.rounds, &row{what: "Stream, IDs, vs Redis INCR", unit: "/s", goal: 1.5, march: p.streamed(),
		yard: func() float64 {
			const trial = 50_000 // shows how many requests take 2 units
			rate, _ := p.incr(workers, 1, trial, "-s", socket)
			rate, _ = p.incr(workers, 1, max(int(rate*2*p.unit.Seconds()), trial), "-s", socket)
			return rate
		}})
}

var pgbenchTPS = regexp.MustCompile(`tps = ([0-9.]+)`)

// postgresRows measures nextval with as many clients.
func postgresRows(p *part) {
	port := strconv.Itoa(p.port())
	bench := filepath.Join(filepath.Dir(programs.Find(p, "initdb")), "pgbench")
	testservers.Postgres(p, must(strconv.Atoi(port)))
	run := func(script string, args ...string) float64 {
		return p.output(pgbenchTPS, bench, append([]string{"-h", "127.0.0.1", "-p", port, "-U", "march", "-n", "-f",
			p.write("script.sql", script)}, append(args, "postgres")...)...)[0]
	}
	run("CREATE SEQUENCE ids;\n", "-t", "1")
	p.measure(p.rounds, &row{what: "Stream, IDs, vs PostgreSQL nextval", unit: "/s", march: p.streamed(),
		yard: func() float64 {
			return run("SELECT nextval('ids');\n", "-M", "prepared", "-c", strconv.Itoa(workers), "-j", "2", "-T",
				strconv.Itoa(max(int(2*p.unit/time.Second), 1)))
		}})
}

// doorRows measures a room's door for Redis clients against Redis itself. redis-benchmark calls
// both over TCP.
func doorRows(p *part) {
	programs.Find(p, "redis-benchmark")
	redis := p.port()
	testservers.Redis(p, redis)
	d, _ := p.doors()
	tail := &row{what: "  its p99", unit: "ms", goal: 1.5, atMost: true}
	// rate has 50 clients.
	rate := func(port, pipeline, requests int, tail *[]float64) func() float64 {
		return func() float64 {
			rate, p99 := p.incr(50, pipeline, int(float64(requests)*2*p.unit.Seconds()), "-h", "127.0.0.1", "-p",
				strconv.Itoa(port))
			if tail != nil {
				*tail = append(*tail, p99)
			}
			return rate
		}
	}
	at := must(net.ResolveTCPAddr("tcp", d.Redis.Addr().String())).Port
	single := &row{what: "door for Redis, INCR, 50 clients", unit: "/s", goal: 0.95,
		yard: rate(redis, 1, 50_000, &tail.yards), march: rate(at, 1, 50_000, &tail.measured)}
	piped := &row{what: "door for Redis, INCR, pipelines of 16", unit: "/s", goal: 1,
		yard: rate(redis, 16, 500_000, nil), march: rate(at, 16, 500_000, nil)}
	p.measure(p.rounds, single, piped)
	p.add(tail)
}

// doorKey is the key that redis-benchmark increments.
const doorKey = "counter:__rand_int__"

// webDoorRows measures the doors over HTTP against a door with an empty handler, in the same
// process.
func webDoorRows(p *part) {
	d, empty := p.doors()
	const tinyID = "/tinyid/id/"
	var rows []*row
	for _, r := range []struct {
		what, method, path string
		at                 net.Listener
	}{
		{"Leaf, one ID", "GET", "/api/segment/get/" + doorKey, d.Leaf},
		{"TinyId, one ID", "POST", tinyID + "nextIdSimple?token=bench&bizType=" + doorKey, d.TinyID},
		{"TinyId, a segment", "POST", tinyID + "nextSegmentIdSimple?token=bench&bizType=" + doorKey, d.TinyID},
		{"CosId, a segment of 20", "PATCH", "/segments/bench/" + doorKey + "?step=20", d.CosID},
	} {
		rows = append(rows, &row{what: "door for " + r.what, unit: "/s", goal: 0.9,
			yard:  p.requests(r.method, empty, "/empty", ""),
			march: p.requests(r.method, r.at.Addr().String(), r.path, "")})
	}
	p.measure(p.rounds, rows...)
}

// doors runs a room with doors and the tags that their callers use, and a door with an empty handler.
func (p *part) doors() (d room.Doors, empty string) {
	c := p.cluster()
	var tags []allocator.Tag
	for _, key := range []string{doorKey, "bench." + doorKey} {
		tags = append(tags, must(foreign.Tag(key)))
	}
	c.Tag(func(s *record.TagSettings) { s.MinStep = 1_000_000 }, "bench", tags...)
	d = room.Doors{Redis: testcluster.Listen(p, ""), Leaf: testcluster.Listen(p, ""), TinyID: testcluster.Listen(p, ""),
		CosID: testcluster.Listen(p, ""), TinyIDTokens: tinyid.AnyToken("bench")}
	c.Room("a", "door", func(cfg *room.Config) { cfg.Doors, cfg.WarmTags = d, tags })
	l := testcluster.Listen(p, "")
	testcluster.Start(p, func(ctx context.Context) error {
		return door.NewHTTP("empty", http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})).Run(ctx, l)
	})
	return d, fmt.Sprint(l.Addr())
}
