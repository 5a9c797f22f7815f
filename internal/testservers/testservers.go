// Package testservers starts real servers of other systems for tests: a Redis, a PostgreSQL and a
// MariaDB. They serve at a port of 127.0.0.1 that the test has for them, and end with it.
package testservers

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/march-id/march/internal/programs"
)

// Redis starts a redis-server with more arguments.
func Redis(tb testing.TB, port int, args ...string) {
	tb.Helper()
	server := programs.Find(tb, "redis-server")
	args = append([]string{"--bind", "127.0.0.1", "--port", strconv.Itoa(port), "--save", "", "--dir", tb.TempDir()},
		args...)
	begin(tb, exec.Command(server, args...), syscall.SIGTERM, func() bool {
		conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	})
}

// Postgres starts a PostgreSQL. Its user march needs no password, and its database postgres is empty.
func Postgres(tb testing.TB, port int) {
	tb.Helper()
	bin, psql := filepath.Dir(programs.Find(tb, "initdb")), programs.Find(tb, "psql")
	// Not in the test's own folder, which only its user may enter: PostgreSQL does not run
	// as root.
	dir, err := os.MkdirTemp("", "march-postgres-")
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = os.RemoveAll(dir) })
	var as *syscall.SysProcAttr
	if os.Geteuid() == 0 {
		const nobody = 65534
		if err := os.Chown(dir, nobody, nobody); err != nil {
			tb.Fatal(err)
		}
		as = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	}
	data := filepath.Join(dir, "data")
	initdb := exec.Command(filepath.Join(bin, "initdb"), "-D", data, "-A", "trust", "-U", "march", "-E",
		"UTF8", "--locale=C", "--no-sync")
	initdb.SysProcAttr, initdb.Dir = as, dir
	if out, err := initdb.CombinedOutput(); err != nil {
		tb.Fatalf("initdb: %v\n%s", err, out)
	}
	server := exec.Command(filepath.Join(bin, "postgres"), "-D", data, "-p", strconv.Itoa(port), "-k", dir, "-c",
		"listen_addresses=127.0.0.1", "-c", "fsync=off")
	server.SysProcAttr, server.Dir = as, dir
	address := fmt.Sprintf("postgres://march@127.0.0.1:%d/postgres", port)
	begin(tb, server, syscall.SIGINT, func() bool { // it accepts connections before it is ready
		return exec.Command(psql, "-q", "-c", "SELECT 1", address).Run() == nil
	})
}

// MySQL starts a MariaDB. It needs no user or password, and has no database.
func MySQL(tb testing.TB, port int) {
	tb.Helper()
	server, client := programs.Find(tb, "mariadbd"), programs.Find(tb, "mysql")
	dir, at := tb.TempDir(), strconv.Itoa(port)
	begin(tb, exec.Command(server, "--no-defaults", "--user=root", "--skip-grant-tables", "--datadir="+dir,
		"--socket="+filepath.Join(dir, "socket"), "--bind-address=127.0.0.1", "--port="+at), syscall.SIGTERM,
		func() bool {
			return exec.Command(client, "--no-defaults", "-h", "127.0.0.1", "-P", at, "-e", "SELECT 1").Run() == nil
		})
}

// begin starts a server and waits until it is ready. At the end of the test it ends it with
// a signal.
func begin(tb testing.TB, cmd *exec.Cmd, end os.Signal, ready func() bool) {
	tb.Helper()
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	gone := false
	tb.Cleanup(func() {
		if gone {
			return
		}
		_ = cmd.Process.Signal(end)
		if err := <-ended; err != nil {
			tb.Logf("%s: %v", cmd, err)
		}
	})
	deadline := time.After(5 * time.Minute)
	for !ready() {
		select {
		case err := <-ended:
			gone = true
			tb.Fatal(fmt.Errorf("%s ended: %w\n%s", cmd, err, out.Bytes()))
		case <-deadline:
			tb.Fatalf("%s is not ready", cmd)
		case <-time.After(10 * time.Millisecond):
		}
	}
}
