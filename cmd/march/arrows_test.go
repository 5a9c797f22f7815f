package main

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// arrows are the imports that the project's layout rests on: the packages under a path may
// not reach the listed packages, through any of their imports. All are without the
// module's name, or of another module.
var arrows = []struct {
	from string
	not  []string
}{
	{"api", []string{"allocator/ledger", "room", "console", "internal", "go.etcd.io"}},
	{"allocator", []string{"api", "room", "console", "internal/serve", "internal/operator", "internal/observe"}},
	{"allocator/plan", []string{"allocator/ledger"}},
	{"allocator/timeid", []string{"allocator/ledger", "allocator/plan", "allocator/format"}},
	{"allocator/format", []string{"allocator/ledger", "allocator/plan"}},
	{"allocator/ledger/store", []string{"allocator/ledger/record", "allocator/ledger/journal",
		"allocator/ledger/verify"}},
	{"allocator/ledger/record", []string{"allocator/ledger/journal", "allocator/ledger/verify"}},
	{"allocator/ledger/verify", []string{"allocator/ledger/journal"}},
	{"allocator/ledger", []string{"allocator/ledger/recovery", "allocator/ledger/admin"}},
	// so neither the ledger nor its administration, which reach the journal
	{"allocator/ledger/recovery", []string{"allocator/ledger/journal", "allocator/ledger/verify"}},
	{"allocator/ledger/ledgertest/rules", []string{"allocator/ledger/journal", "allocator/ledger/verify"}},
	{"allocator/ledger/admin", []string{"allocator/ledger/verify", "allocator/ledger/recovery"}},
	{"room", []string{"console"}},
	{"console", []string{"room"}},
	{"internal/serve", []string{"room", "console"}},
	{"internal/observe", []string{"room", "console"}},
	{"internal/operator", []string{"room", "console"}},
}

// direct maps packages to the only package of the product that may import them.
var direct = map[string]string{
	"go.etcd.io/etcd/client/v3": "allocator/ledger/store",
}

// goPackage is a package in the output of `go list`.
type goPackage struct {
	ImportPath string
	Imports    []string
	Deps       []string
	Export     string // the file with its types, if it was asked for
	Dir        string
	GoFiles    []string
}

const module = "github.com/march-id/march/"

func listPackages(t *testing.T, args ...string) (all []goPackage) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", append([]string{"list"}, args...)...) //nolint:gosec // the tests' own
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	d := json.NewDecoder(strings.NewReader(string(out)))
	for {
		var p goPackage
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
}

// under reports whether a package is under a path: of this module, or of another one if the
// first part of the path is a host.
func under(pkg, path string) bool {
	if host, _, _ := strings.Cut(path, "/"); !strings.Contains(host, ".") {
		path = module + path
	}
	return pkg == path || strings.HasPrefix(pkg, path+"/")
}

// TestArrows holds the imports to the layout of the tree.
func TestArrows(t *testing.T) {
	t.Parallel()
	packages := listPackages(t, "-json=ImportPath,Imports,Deps", module+"...")
	for _, a := range arrows {
		found := false
		for _, p := range packages {
			if !under(p.ImportPath, a.from) {
				continue
			}
			found = true
			for _, dep := range p.Deps {
				if slices.ContainsFunc(a.not, func(not string) bool { return under(dep, not) }) {
					t.Errorf("%s reaches %s", p.ImportPath, dep)
				}
			}
		}
		if !found {
			t.Errorf("there is no package under %s: change the list as the tree did", a.from)
		}
	}
	for imported, by := range direct {
		n := 0
		for _, p := range packages {
			if !slices.ContainsFunc(p.Imports, func(path string) bool { return under(path, imported) }) {
				continue
			}
			n++
			if !under(p.ImportPath, by) && !proof(p.ImportPath) {
				t.Errorf("%s imports %s; only %s may", p.ImportPath, imported, by)
			}
		}
		if n == 0 {
			t.Errorf("no package imports %s: change the list as the tree did", imported)
		}
	}
}

// proof reports whether a package is of the proof. The proof speaks with etcd by itself, so
// that a fault of the product cannot hide there.
func proof(pkg string) bool {
	return slices.ContainsFunc([]string{"allocator/ledger/ledgertest", "allocator/ledger/embedded",
		"cmd/chaos", "cmd/scale", "cmd/bench"},
		func(path string) bool { return under(pkg, path) })
}
