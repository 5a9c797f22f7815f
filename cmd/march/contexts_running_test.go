package main

import (
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/march-id/march/allocator"
)

// contextsHome makes an empty directory of settings, and returns the path of its file of contexts.
func contextsHome(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "march-") // paths of sockets are short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	t.Setenv("HOME", dir)
	t.Setenv("XDG_CONFIG_HOME", filepath.Join(dir, "config"))
	path, err := contextsPath()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// A cluster's context is in use while the cluster runs, if no other was chosen. The oldest wins.
func TestContextsOfRunningClusters(t *testing.T) {
	path := contextsHome(t)
	load := func() *contextFile {
		t.Helper()
		f, err := loadContexts(path)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	announce := func(base int) func() {
		t.Helper()
		_, stop, err := announceContext(base, map[string]string{"room": net.JoinHostPort("127.0.0.1", "1")})
		if err != nil {
			t.Fatal(err)
		}
		return stop
	}
	first := announce(7100)
	second := announce(7000)
	f := load()
	if got, err := f.Get("dev:7000"); f.InUse() != "dev:7100" || err != nil || got["room"] != "127.0.0.1:1" {
		t.Errorf("two clusters: %q is in use, dev:7000 is %v, %v", f.InUse(), got, err)
	}
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
	first()
	if f := load(); f.InUse() != "dev:7000" || !slices.Equal(f.Names(), []string{"dev:7000", "prod"}) {
		t.Errorf("after the first ended: %q of %v is in use", f.InUse(), f.Names())
	}
	second()
	if f := load(); f.InUse() != "" || !slices.Equal(f.Names(), []string{"prod"}) {
		t.Errorf("after both ended: %q of %v is in use", f.InUse(), f.Names())
	}
}

// A socket that a killed process left behind is no context, and the next process takes its name.
func TestDeadContext(t *testing.T) {
	path := contextsHome(t)
	at := filepath.Join(filepath.Dir(path), "dev-7000.sock")
	if err := os.MkdirAll(filepath.Dir(at), 0o700); err != nil {
		t.Fatal(err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: at, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	_ = l.Close()
	if _, err := os.Stat(at); err != nil {
		t.Fatal(err)
	}
	if f, err := loadContexts(path); err != nil || f.InUse() != "" {
		t.Errorf("%q is in use, %v", f.InUse(), err)
	}
	name, stop, err := announceContext(7000, nil)
	if err != nil {
		t.Fatal(err)
	}
	if f, err := loadContexts(path); err != nil || f.InUse() != name {
		t.Errorf("%q is in use, %v; want %s", f.InUse(), err, name)
	}
	stop()
	if _, err := os.Stat(at); err == nil {
		t.Errorf("%s is still there", at)
	}
}

// A directory in which there can be no socket is an error; the cluster runs without a context then.
func TestContextWithoutSocket(t *testing.T) {
	t.Setenv("XDG_CONFIG_HOME", filepath.Join(t.TempDir(), strings.Repeat("long", 40)))
	t.Setenv("HOME", filepath.Join(t.TempDir(), strings.Repeat("long", 40)))
	if _, _, err := announceContext(7000, nil); allocator.KindOf(err) != allocator.Invalid {
		t.Error(err)
	}
}
