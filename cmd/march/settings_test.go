package main

import (
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/internal/words"
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
			for _, cmd := range tree(root) {
				visitSettings(cmd, func(f *pflag.Flag) {
					if f.Name == name {
						if err := s.set(f); err != nil {
							oneLine(t, err)
						}
					}
				})
			}
		}
	})
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
		if got := words.WithoutSecrets(text); got != want {
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
	for _, cmd := range tree(newRoot(io.Discard, io.Discard)) {
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
	}
	for _, name := range []string{"", "string", "strings", "int", "duration"} {
		if seen[name] == 0 {
			t.Errorf("no flag has a value called %q", name)
		}
	}
}

// TestInputsAreCheckedAlike: a value that is not allowed is refused before anything listens or is asked, whether it is
// of a flag, of the environment or of a file, and the error names where it stands.
func TestInputsAreCheckedAlike(t *testing.T) {
	for _, row := range []struct{ setting, value, says string }{
		{"etcd", "host", `etcd endpoints: "host"; allowed: host:port or http(s)://host:port`},
		{"etcd", "::1:2379", `etcd endpoints: "::1:2379"; allowed: `},
		{"etcd", "etcd://", `etcd endpoints: "etcd://"; allowed: `},
		{"etcd", "127.0.0.1:99999", `etcd endpoints: "127.0.0.1:99999"; allowed: `},
		{"grpc", "22150", `: "22150"; allowed: HOST:PORT`},
		{"grpc", "", `: ""; allowed: HOST:PORT`},
		{"http", "127.0.0.1:99999", `: "127.0.0.1:99999"; allowed: HOST:PORT`},
		{"redis", "6379", `: "6379"; allowed: HOST:PORT`},
		{"advertise", "host", `: "host"; allowed: HOST:PORT`},
		{"max-tags", "010", `: "010"; allowed: a whole number up to 9223372036854775807, without leading zeros`},
		{"max-tags", "0x10", `: "0x10"; allowed: a whole number`},
		{"max-tags", "0", `max-tags: 0; allowed: 1 or more`},
		{"hold", "1ms", `hold: 1ms; allowed: 1s to `},
		{"hold", "60", `: "60"; allowed: a duration such as `},
		{"traces-ratio", "2", `traces-ratio: 2; allowed: 0 to 1`},
		{"traces", "otel:4317", `: "otel:4317"; allowed: http://HOST:PORT`},
		{"wait-for-etcd", "maybe", `: "maybe"; allowed: true or false`},
		{"worker", "first", `worker: "first"; allowed: `},
		{"leaf-snowflake", "No", `: tag: "No" begins with "N"; allowed: `},
		{"tls-client-auth", "never", `: "never"; allowed: optional, required`},
		{"log-format", "", `: ""; allowed: text, json`},
	} {
		file := filepath.Join(t.TempDir(), "room.yaml")
		if err := os.WriteFile(file, []byte(row.setting+": "+strconv.Quote(row.value)+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, source := range []struct {
			args, env []string
			names     string
		}{
			{[]string{"--" + row.setting + "=" + row.value}, nil, "march config validate: " + row.setting},
			{nil, []string{variable(row.setting), row.value},
				"march config validate: " + variable(row.setting) + ": "},
			{[]string{"--config", file}, nil, "march config validate: " + file + ":1: " + row.setting},
		} {
			if source.env != nil {
				t.Setenv(source.env[0], source.env[1])
			}
			_, stderr, code := march(t, append([]string{"config", "validate", "room", "eu-1"}, source.args...)...)
			if code != exitUsage || !strings.HasPrefix(stderr, source.names) || !strings.Contains(stderr, row.says) {
				t.Errorf("%s %q: exit code %d, %s; want %s", source.names, row.value, code, stderr, row.says)
			}
			if source.env != nil {
				_ = os.Unsetenv(source.env[0]) // t.Setenv puts it back
			}
		}
	}
}
