//go:build live

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/march-id/march/internal/programs"
)

// productionDocument is the page that TestProductionDocument follows; TestReadme does not.
const productionDocument = "docs/production.md"

// TestProductionDocument follows docs/production.md: three members of etcd, two rooms and a console, as processes at
// addresses of this test's own. No command may fail. The test logs how long the page took; the ten minutes that it may
// take are a limit for what hangs, which no slow machine reaches.
func TestProductionDocument(t *testing.T) {
	if testing.Short() {
		t.Skip("it builds etcd's programs")
	}
	if runtime.GOOS != "linux" {
		t.Skip("all of 127.0.0.0/8 are addresses of this host under Linux alone")
	}
	t.Parallel()
	for _, program := range []string{"curl", "promtool"} {
		programs.Find(t, program)
	}
	s := newShell(t, etcdPrograms(t))
	rules, err := filepath.Abs(rulesFile)
	if err != nil {
		t.Fatal(err)
	}
	// An operator's contexts are those that the page makes. The shell has a console of another cluster.
	s.run("unset MARCH_ROOM; export MARCH_CONSOLE=127.0.0.1:1 XDG_CONFIG_HOME=$PWD/config; cp " + rules + " .\n")
	ran, began := 0, time.Now()
	ctx, cancel := context.WithTimeoutCause(t.Context(), 10*time.Minute,
		errors.New("the page was not followed to its end within ten minutes"))
	defer cancel()
	for section := range strings.SplitSeq(readDocument(t, productionDocument), "\n## ") {
		for _, step := range readmeSteps(section) {
			if ctx.Err() != nil {
				t.Fatalf("%v; next: %s", context.Cause(ctx), step.command)
			}
			s.run(strings.ReplaceAll(step.command, "127.0.0.", fmt.Sprintf("127.7.%d.", s.base/100%250+1)))
			ran++
		}
	}
	t.Logf("%d commands in %v", ran, time.Since(began).Round(time.Second))
	if ran < 40 {
		t.Errorf("%d commands found", ran)
	}
}

// etcdPrograms makes a folder with etcd's programs: etcd is the tests' own.
func etcdPrograms(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	build := []string{"go", "build", "-modfile", ".ci/etcd/go.mod", "-o", dir + "/", "go.etcd.io/etcd/etcdctl/v3",
		"go.etcd.io/etcd/etcdutl/v3"}
	if out, err := command(t, filepath.Join("..", ".."), build...); err != nil {
		t.Fatalf("%v: %v\n%s", build, err, out)
	}
	etcd, err := exec.LookPath(etcdProgram)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "etcd"), fmt.Appendf(nil, "#!/bin/sh\nexec %s \"$@\"\n", etcd), 0o700) //nolint:gosec // it is a program
	}
	if err != nil {
		t.Fatal(err)
	}
	return dir
}
