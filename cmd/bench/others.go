package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"time"
)

// redisRows measures INCR with as many clients as Stream has workers. Each has one request
// under way at a time.
func redisRows(ctx context.Context, b *bench) error {
	incr := b.add(row{what: "Stream, IDs, vs Redis INCR", unit: "/s", goal: 1.5, measured: b.stream})
	if !installed("redis-server", "redis-benchmark") {
		return b.leaveOut(incr, "redis-server and redis-benchmark")
	}
	dir, err := os.MkdirTemp("", "march-bench-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	socket := filepath.Join(dir, "redis.sock")
	server := exec.CommandContext(ctx, "redis-server", "--port", "0", "--unixsocket", socket,
		"--save", "", "--dir", dir)
	if err := server.Start(); err != nil {
		return err
	}
	defer stop(server)
	if err := await(ctx, func() bool { return dial("unix", socket) }); err != nil {
		return err
	}
	for range b.rounds {
		// A first run of known length shows how many requests take 2 units.
		const trial = 50_000
		rate, err := redisRate(ctx, socket, trial)
		if err == nil {
			rate, err = redisRate(ctx, socket, max(int(rate*2*b.unit.Seconds()), trial))
		}
		if err != nil {
			return err
		}
		incr.yard = append(incr.yard, rate)
	}
	return nil
}

var redisCSV = regexp.MustCompile(`"INCR","([0-9.]+)"`)

func redisRate(ctx context.Context, socket string, requests int) (float64, error) {
	out, err := exec.CommandContext(ctx, "redis-benchmark", "-s", socket, "-c", strconv.Itoa(workers),
		"-n", strconv.Itoa(requests), "-t", "incr", "--csv").CombinedOutput()
	match := redisCSV.FindSubmatch(out)
	if err != nil || match == nil {
		return 0, fmt.Errorf("redis-benchmark: %w: %s", err, out)
	}
	return strconv.ParseFloat(string(match[1]), 64)
}

// postgresRows measures nextval with as many clients.
func postgresRows(ctx context.Context, b *bench) error {
	nextval := b.add(row{what: "Stream, IDs, vs PostgreSQL nextval", unit: "/s", measured: b.stream})
	bin := postgresBin()
	if bin == "" || !installed(filepath.Join(bin, "initdb"), filepath.Join(bin, "postgres"),
		filepath.Join(bin, "pgbench")) {
		return b.leaveOut(nextval, "initdb, postgres and pgbench")
	}
	if os.Geteuid() == 0 {
		return b.leaveOut(nextval, "a user other than root, as which postgres does not run;")
	}
	dir, err := os.MkdirTemp("", "march-bench-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	data := filepath.Join(dir, "data")
	if out, err := exec.CommandContext(ctx, filepath.Join(bin, "initdb"), "-D", data, "-A", "trust", "-U",
		"bench").CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w: %s", err, out)
	}
	server := exec.CommandContext(ctx, filepath.Join(bin, "postgres"), "-D", data, "-k", dir, "-c", "listen_addresses=")
	if err := server.Start(); err != nil {
		return err
	}
	defer stop(server)
	if err := await(ctx, func() bool { return dial("unix", filepath.Join(dir, ".s.PGSQL.5432")) }); err != nil {
		return err
	}
	script := filepath.Join(dir, "nextval.sql")
	if err := os.WriteFile(script, []byte("SELECT nextval('ids');\n"), 0o600); err != nil {
		return err
	}
	pgbench := func(args ...string) ([]byte, error) {
		args = append([]string{"-h", dir, "-U", "bench"}, args...)
		return exec.CommandContext(ctx, filepath.Join(bin, "pgbench"), append(args, "postgres")...).CombinedOutput()
	}
	create := filepath.Join(dir, "create.sql")
	if err := os.WriteFile(create, []byte("CREATE SEQUENCE ids;\n"), 0o600); err != nil {
		return err
	}
	if out, err := pgbench("-n", "-t", "1", "-f", create); err != nil {
		return fmt.Errorf("create a sequence: %w: %s", err, out)
	}
	for range b.rounds {
		seconds := max(int(2*b.unit/time.Second), 1)
		out, err := pgbench("-n", "-M", "prepared", "-c", strconv.Itoa(workers), "-j", "2", "-T",
			strconv.Itoa(seconds), "-f", script)
		match := pgbenchTPS.FindSubmatch(out)
		if err != nil || match == nil {
			return fmt.Errorf("pgbench: %w: %s", err, out)
		}
		rate, err := strconv.ParseFloat(string(match[1]), 64)
		if err != nil {
			return err
		}
		nextval.yard = append(nextval.yard, rate)
	}
	return nil
}

var pgbenchTPS = regexp.MustCompile(`tps = ([0-9.]+)`)

// postgresBin returns the folder of PostgreSQL's programs, "" for none: Debian keeps them out
// of the path.
func postgresBin() string {
	if found, _ := filepath.Glob("/usr/lib/postgresql/*/bin"); len(found) > 0 {
		return found[len(found)-1]
	}
	path, err := exec.LookPath("initdb")
	if err != nil {
		return ""
	}
	return filepath.Dir(path)
}

// leaveOut removes a row from the table and prints why.
func (b *bench) leaveOut(r *row, needs string) error {
	b.progress("  left out: %q needs %s", r.what, needs)
	b.rows = b.rows[:len(b.rows)-1]
	return nil
}

func installed(programs ...string) bool {
	for _, program := range programs {
		if _, err := exec.LookPath(program); err != nil {
			return false
		}
	}
	return true
}

func dial(network, address string) bool {
	conn, err := net.Dial(network, address)
	if err == nil {
		_ = conn.Close()
	}
	return err == nil
}

// await polls until ready returns true, for at most ten seconds.
func await(ctx context.Context, ready func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for !ready() {
		select {
		case <-ctx.Done():
			return fmt.Errorf("the server did not start: %w", ctx.Err())
		case <-time.After(10 * time.Millisecond):
		}
	}
	return nil
}

func stop(server *exec.Cmd) {
	_ = server.Process.Signal(os.Interrupt)
	_ = server.Wait()
}
