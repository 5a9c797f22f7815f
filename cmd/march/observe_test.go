package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/march-id/march/allocator/ledger/ledgertest"
)

// A server's log level follows the settings file at SIGHUP. With JSON logs every line is JSON.
func TestLogLevel(t *testing.T) {
	t.Parallel()
	etcd := ledgertest.StartEtcd(t).Endpoint
	settings := filepath.Join(t.TempDir(), "march.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(settings, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("log-level: info\n")
	start := func(args ...string) *process {
		t.Helper()
		args = append([]string{"console", "--etcd", etcd, "--grpc", "127.0.0.1:0", "--http", ""}, args...)
		return begin(t, "", nil, args...).ready(t)
	}
	hangup := func(p *process, says string) {
		t.Helper()
		if err := p.cmd.Process.Signal(syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
		if err := p.await(patience(t), says); err != nil {
			t.Error(err)
		}
	}
	end := func(p *process) {
		t.Helper()
		if code, err := p.stop(patience(t), syscall.SIGTERM); code != 0 || err != nil {
			t.Errorf("exit code %d, %v", code, err)
		}
	}

	p := start("--config", settings, "--log-format", "json")
	for _, step := range []struct{ file, says string }{
		{"log-level: debug\n", `"log level changed".*"from":"info","to":"debug"`},
		{"log-level: loud\n", `"log level not changed".*march.yaml:1: log-level: \\"loud\\"; allowed: trace, debug`},
		{"log-level: [info]\n", `"log level not changed".*march.yaml:1: log-level: a list`},
		{"no-such: 1\n", `"log level not changed".*there is no setting`},
		{"log-level: error\n", `"log level changed".*"from":"debug","to":"error"`},
		{"# the default again\n", `"log level changed".*"from":"error","to":"info"`},
	} {
		write(step.file)
		hangup(p, step.says)
	}
	end(p)
	_, stderr := p.output()
	for line := range strings.Lines(stderr) {
		var fields map[string]any
		if err := json.Unmarshal([]byte(line), &fields); err != nil || fields["@message"] == nil {
			t.Errorf("not a line of JSON: %q, %v", line, err)
		}
		for name, value := range fields {
			if _, nested := value.(map[string]any); nested {
				t.Errorf("%s is an object: %s", name, line)
			}
		}
	}

	write("log-level: debug\n")
	p = start("--config", settings, "--log-level", "info")
	hangup(p, "log level not changed: .*a flag or in the environment")
	end(p)
	p = start()
	hangup(p, "log level not changed: .*no settings file")
	end(p)
}
