package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/march-id/march/allocator"
)

// The commands that an output names have the context of the command whose output it is: those of March, in backquotes
// or as a problem's command in JSON, but for servers, which have none.
func TestInContext(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"Next: `march recover`\n":            "Next: `march --context prod recover`\n",
		"`march tag create a`, or `march x`": "`march --context prod tag create a`, or `march --context prod x`",
		`"command":"march verify"`:           `"command":"march --context prod verify"`,
		`"command": "march migrate plan"`:    `"command": "march --context prod migrate plan"`,
		"Next: `march room a`, `march console`; is `march dev` running?": "Next: `march room a`, `march console`; " +
			"is `march dev` running?",
		"Next: `etcdctl endpoint status`; the march is long": "Next: `etcdctl endpoint status`; the march is long",
	} {
		var b strings.Builder
		if n, err := io.WriteString(inContext{&b, "prod"}, text); n != len(text) || err != nil || b.String() != want {
			t.Errorf("%q: got %q, %d, %v", text, b.String(), n, err)
		}
	}
}

// A command in a folded text is in one line.
func TestFoldedCommand(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	command := "`march instance forget a a-long-name-of-an-instance`"
	folded(&b, "  ", strings.Repeat("word ", 18)+"(see "+command+"), and a single ` too")
	if !strings.Contains(b.String(), "\n  "+command+"), and a single ` too\n") {
		t.Error(b.String())
	}
}

func TestContextFileRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "contexts.json")
	for content, want := range map[string]string{
		`{"contexts":{"Prod":{}}}`:             `"Prod"`,
		`{"contexts":{"prod":{"console":[]}}}`: "not a file of contexts",
		`{"others":{}}`:                        "others",
		`{`:                                    "mend or remove it",
		strings.Repeat(" ", 1<<20+1):           "has more than 1048576 bytes",
	} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := loadContexts(path); allocator.KindOf(err) != allocator.Invalid ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%.40q: %v, want %q", content, err, want)
		}
	}
	if err := checkContextName(strings.Repeat("a", 64)); allocator.KindOf(err) != allocator.Invalid {
		t.Errorf("a name of 64: %v", err)
	}
}

// What a context has is read as it was written: JSON is YAML, with other rules for what stands in quotes.
func TestContextFileIsReadAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "contexts.json")
	f := &contextFile{Contexts: map[string]map[string]string{
		"007":  {"tls-ca": "/a <b>&'\"\\ é😀\u2028\t#: {[~", "room": "1e3"},
		"true": {"console": "", "etcd": strings.Repeat("x ", 500) + "\n"},
	}}
	if err := f.Save(path); err != nil {
		t.Fatal(err)
	}
	again, err := loadContexts(path)
	if err != nil || !reflect.DeepEqual(again.Contexts, f.Contexts) {
		t.Errorf("%q, %v", again, err)
	}
}

// A cluster's context is in use while the cluster runs, if no other was chosen. The oldest wins. The file that a killed
// process left behind is no context.
func TestContextsOfRunningClusters(t *testing.T) {
	t.Setenv("HOME", t.TempDir())
	t.Setenv("XDG_CONFIG_HOME", filepath.Join(t.TempDir(), "config"))
	path, err := contextsPath()
	if err != nil {
		t.Fatal(err)
	}
	check := func(when, inUse string, names ...string) *contextFile {
		t.Helper()
		f, err := loadContexts(path)
		if err != nil {
			t.Fatal(err)
		}
		if f.InUse() != inUse || !slices.Equal(f.Names(), names) {
			t.Fatalf("%s: %q of %v is in use; want %q of %v", when, f.InUse(), f.Names(), inUse, names)
		}
		return f
	}
	console, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // of a test
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = console.Close() })
	// kill leaves the file behind, as a process does that is killed. Another program may listen at its port then.
	begin := func(base int) (stop, kill func()) {
		t.Helper()
		_, stop, err := announceContext(base, map[string]string{"console": console.Addr().String()})
		if err != nil {
			t.Fatal(err)
		}
		return stop, func() {
			at := filepath.Join(filepath.Dir(path), fmt.Sprintf(contextOfDev, base))
			content, err := os.ReadFile(at) //nolint:gosec // of this test
			stop()
			if err := errors.Join(err, os.WriteFile(at, content, 0o600)); err != nil {
				t.Fatal(err)
			}
		}
	}
	stopFirst, _ := begin(7100)
	_, killSecond := begin(7000)
	f := check("two clusters", "dev:7100", "dev:7000", "dev:7100")
	for what, err := range map[string]error{"use": f.Use("dev:7000"), "remove": f.Remove("dev:7000")} {
		if allocator.KindOf(err) != allocator.Refused {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := f.Add("dev:7200", nil); allocator.KindOf(err) != allocator.Invalid {
		t.Errorf("a context of the file by such a name: %v", err)
	}
	if err := f.Add("prod", map[string]string{"room": "prod:7010"}); err != nil {
		t.Fatal(err)
	}
	if err := f.Use("prod"); err != nil || f.InUse() != "prod" {
		t.Errorf("%q is in use after `use prod`, %v", f.InUse(), err)
	}
	if err := f.Use(""); err != nil {
		t.Fatal(err)
	}
	if err := f.Save(path); err != nil {
		t.Fatal(err)
	}
	stopFirst()
	check("after the first ended", "dev:7000", "dev:7000", "prod")
	killSecond()
	check("after the second was killed", "", "prod")
	stopThird, _ := begin(7000)
	check("another one at its ports", "dev:7000", "dev:7000", "prod")
	stopThird()
	check("after all ended", "", "prod")
	stopFourth, _ := begin(7000)
	_ = console.Close()
	check("a cluster of another host", "", "prod")
	stopFourth()
}
