package main

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"go.etcd.io/etcd/server/v3/etcdmain"
)

// rewriting reports whether tests write the expected output instead of comparing it. The flag
// is that of package datadriven.
func rewriting() bool { return flag.Lookup("rewrite").Value.String() == "true" }

// etcdProgram is the name of etcd's program. It is not etcd: a script's command of that name
// starts one.
const etcdProgram = "etcd-program"

// TestMain makes this test program march or etcd itself if it is called by that name. So the
// tests run real processes, under the race detector too.
func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) != "march" { // the tests
		for _, setting := range os.Environ() {
			if name, _, _ := strings.Cut(setting, "="); strings.HasPrefix(name, "MARCH_") {
				_ = os.Unsetenv(name)
			}
		}
		if os.Getenv("GORACE") == "" {
			_ = os.Setenv("GORACE", "atexit_sleep_ms=20") // not 1 s at the end of each process
		}
	}
	testscript.Main(withState{m}, map[string]func(){"march": main, "http": httpMain,
		etcdProgram: func() { etcdmain.Main(os.Args) }})
}

// withState gives tests a directory of their own for journals.
type withState struct{ m *testing.M }

// Run implements testscript.TestingM.
func (w withState) Run() int {
	dir, err := os.MkdirTemp("", "march-state-")
	if err != nil {
		panic(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	_ = os.Setenv("XDG_STATE_HOME", dir)
	_ = os.Setenv("XDG_CONFIG_HOME", filepath.Join(dir, "config")) // not the developer's own contexts
	// Parallel tests wait for their processes more than they work. So this many run at
	// once, however few processors there are. A flag overrides it.
	if err := flag.Set("test.parallel", "12"); err != nil {
		panic(err)
	}
	return w.m.Run()
}
