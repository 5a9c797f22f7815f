package main

import (
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/march-id/march/allocator"
)

// TestSettingsAreSafe: no flag for a single use of a command is a setting, and every flag of a
// server is one.
func TestSettingsAreSafe(t *testing.T) {
	settings := settingNames(newRoot(io.Discard, io.Discard))
	known := make(map[string]bool, len(settings))
	for _, name := range settings {
		known[name] = true
	}
	for _, name := range []string{"count", "to", "step", "force", "version", "of", "prefix", "limit", "start"} {
		if known[name] {
			t.Errorf("--%s can be set in the environment", name)
		}
	}
	for _, name := range []string{"console", "room", "timeout", "output", "log-level", "etcd", "grpc", "http",
		"name", "data-dir", "rooms"} {
		if !known[name] {
			t.Errorf("--%s cannot be set in the environment", name)
		}
	}
}

// FuzzSettings: a settings file of any content is refused with the place of each mistake, or its values
// all appear in the file. Setting all flags from it then works or fails clearly.
func FuzzSettings(f *testing.F) {
	for _, seed := range []string{
		"", "# nothing\n", "console: 127.0.0.1:7001\nroom: \"h:1\"\n", "etcd: [a:1, b:2]\nrooms:\n- 007\n- 1e3\n",
		"timeout: 5s # five\n",
		"a: b\n---\nc: d\n", "- a\n", "room: {a: b}\n", "room:\n", "room: &x y\nconsole: *x\n", "? [a]\n: b\n",
		"<<: {a: b}\n", "room: |\n  text\n",
		"room: !!str 1\n", "\"ro\\u006fm\": 'a''b'\n", "room: [a\n", "\t\n", "\x00\xff", "%YAML 1.2\n---\na: b\n",
		"a: b\na: c\n", "a: .inf\nb: .nan\nc: 0x_1\nd: true\ne: ~\n",
	} {
		f.Add([]byte(seed))
	}
	place := regexp.MustCompile(`^f:[0-9]+:[0-9]+: \S`)
	f.Fuzz(func(t *testing.T, content []byte) {
		root := newRoot(io.Discard, io.Discard)
		read, err := parseSettings("f", content, settingNames(root))
		if err != nil {
			if !place.MatchString(err.Error()) || allocator.KindOf(err) != allocator.Invalid {
				t.Errorf("%v (%v)", err, allocator.KindOf(err))
			}
			return
		}
		for name, s := range read {
			if s.Line < 1 || len(s.Values) == 0 && !s.List {
				t.Errorf("%s: %+v", name, s)
			}
			visitCommands(root, func(cmd *cobra.Command) {
				visitSettings(cmd, func(f *pflag.Flag) {
					if f.Name == name {
						if err := s.set("f", f); err != nil {
							oneLine(t, err)
						}
					}
				})
			})
		}
	})
}

func visitCommands(cmd *cobra.Command, visit func(*cobra.Command)) {
	visit(cmd)
	for _, child := range cmd.Commands() {
		visitCommands(child, visit)
	}
}

// TestHelp: every command has help with its name and its usage. The help goes to stdout with
// exit code 0.
func TestHelp(t *testing.T) {
	visitCommands(newRoot(io.Discard, io.Discard), func(cmd *cobra.Command) {
		path := strings.Fields(cmd.CommandPath())
		t.Run(strings.Join(path[1:], "-"), func(t *testing.T) {
			t.Parallel()
			stdout, stderr, code := march(t, append(path[1:], "--help")...)
			if code != exitOK || stderr != "" {
				t.Errorf("exit code %d, stderr %q", code, stderr)
			}
			if !strings.Contains(stdout, "Usage:\n  "+cmd.CommandPath()) {
				t.Errorf("no usage of %s in\n%s", cmd.CommandPath(), stdout)
			}
			if cmd.Short == "" || cmd.Runnable() && !cmd.HasSubCommands() && cmd.Name() != "help" && len(stdout) < 100 {
				t.Errorf("too little help:\n%s", stdout)
			}
		})
	})
}

// TestGoneSettings: flags of the version before are accepted, in the environment and in files too, and stderr has
// what stands in their place; others are not named.
func TestGoneSettings(t *testing.T) {
	file := filepath.Join(t.TempDir(), "console.yaml")
	const before = "prometheus: http://prometheus:9090\nprometheus-cluster: c\nmax-busy-streams: 5\n"
	if err := os.WriteFile(file, []byte(before), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("MARCH_MAX_STREAM_ANSWERS", "7")
	_, stderr, code := march(t, "config", "validate", "console", "--config", file, "--insecure",
		"--prometheus-ca", "ca.pem", "--dashboard", "https://grafana.example.com/d/march")
	for _, name := range []string{"prometheus", "prometheus-cluster", "prometheus-ca", "max-busy-streams",
		"max-stream-answers"} {
		want := "march console: --" + name + " has no effect, and goes with the next version: "
		if !strings.Contains(stderr, want) {
			t.Errorf("stderr does not have %q:\n%s", want, stderr)
		}
	}
	if code != exitOK || strings.Contains(stderr, "prometheus-token-file") {
		t.Errorf("exit code %d\n%s", code, stderr)
	}
	_, stderr, code = march(t, "config", "validate", "console", "--dashboard", "grafana/d/march")
	if code != exitUsage || !strings.Contains(stderr, `dashboard: "grafana/d/march"; allowed: `) {
		t.Errorf("a wrong dashboard: exit code %d\n%s", code, stderr)
	}
}
