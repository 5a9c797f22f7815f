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
			eachCommand(root, func(cmd *cobra.Command) {
				visitSettings(cmd, func(f *pflag.Flag) {
					if f.Name == name {
						if err := s.set(f); err != nil {
							oneLine(t, err)
						}
					}
				})
			})
		}
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

func TestWithoutSecrets(t *testing.T) {
	for text, want := range map[string]string{
		"http://a:b@c/d":          "http://hidden@c/d",
		"https://token@c":         "https://hidden@c",
		"http://a:p@ss@c":         "http://hidden@c",
		"http://c/d?mail=x@y":     "http://c/d?mail=x@y",
		"http://a:p/s@c":          "http://hidden@c",
		"http://c:80/d?mail=x@y":  "http://c:80/d?mail=x@y",
		"one:2379,http://u:p@two": "one:2379,http://hidden@two",
		"user@host":               "user@host",
	} {
		if got := withoutSecrets(text); got != want {
			t.Errorf("%q becomes %q, want %q", text, got, want)
		}
	}
}

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

// Before, the help took words between back quotes in a flag's description for the name of its
// value: --cluster-uuid march layout show.
func TestFlagsNameTheirValues(t *testing.T) {
	seen := make(map[string]int)
	eachCommand(newRoot(io.Discard, io.Discard), func(cmd *cobra.Command) {
		cmd.InitDefaultHelpFlag()
		for _, flags := range []*pflag.FlagSet{cmd.Flags(), cmd.PersistentFlags()} {
			flags.VisitAll(func(f *pflag.Flag) {
				name, usage := pflag.UnquoteUsage(f)
				seen[name]++
				switch name {
				case "", "string", "strings", "stringArray", "int", "int32", "float", "duration":
				default:
					t.Errorf("%s --%s shows %q as its value", cmd.CommandPath(), f.Name, name)
				}
				if usage == "" && !f.Hidden || strings.Contains(usage, "`") {
					t.Errorf("%s --%s: %q", cmd.CommandPath(), f.Name, usage)
				}
			})
		}
	})
	for _, name := range []string{"", "string", "strings", "int", "duration"} {
		if seen[name] == 0 {
			t.Errorf("no flag has a value called %q", name)
		}
	}
}
