package main

import (
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// cycles are the packages of the ledger whose files call each other in a circle, with the most files
// of a circle. In the others the files have an order in which each calls only earlier ones: a
// reader can begin with the first. The ledger's doc.go tells its order: see ledgerOrder.
var cycles = map[string]int{
	"allocator/ledger/ledgertest": 3, // the fake decides what becomes of a transaction, and wakes its watchers
}

// TestFilesGoOneWay holds the files of the ledger's packages to an order.
func TestFilesGoOneWay(t *testing.T) {
	t.Parallel()
	const under = "allocator/ledger"
	exports := make(map[string]string)
	packages := make(map[string][]string) // the paths of the files
	for _, p := range listPackages(t, "-export", "-deps", "-json=ImportPath,Export,Dir,GoFiles", module+under+"/...") {
		exports[p.ImportPath] = p.Export
		if strings.HasPrefix(p.ImportPath, module+under) {
			for _, file := range p.GoFiles {
				packages[p.ImportPath] = append(packages[p.ImportPath], filepath.Join(p.Dir, file))
			}
		}
	}
	got, found := make(map[string]int), 0
	for path, files := range packages {
		refers := references(t, path, files, exports)
		if strings.TrimPrefix(path, module) == under {
			ledgerOrder(t, files, refers)
		}
		for file := range refers {
			found += len(refers[file])
			n := 0
			for other := range reachable(refers, file) {
				if reachable(refers, other)[file] {
					n++
				}
			}
			if short := strings.TrimPrefix(path, module); n > 1 {
				got[short] = max(got[short], n)
			}
		}
	}
	if len(packages) < 10 || found < 100 {
		t.Errorf("%d packages with %d references", len(packages), found)
	}
	for path, n := range got {
		if n > cycles[path] {
			t.Errorf("%s: %d files refer to each other in a circle, %d are allowed: "+
				"move what an earlier file needs to it", path, n, max(cycles[path], 1))
		}
	}
	for path, n := range cycles {
		if got[path] < n {
			t.Errorf("%s: circles have %d files now: lower the %d in the list", path, got[path], n)
		}
	}
}

// ledgerOrder holds the list at the end of the ledger's doc.go to the code: it has all files, and no
// function calls one of a later file.
func ledgerOrder(t *testing.T, files []string, refers map[string]map[string]bool) {
	t.Helper()
	doc := filepath.Join(filepath.Dir(files[0]), "doc.go")
	text, err := os.ReadFile(doc)
	if err != nil {
		t.Fatal(err)
	}
	_, list, _ := strings.Cut(string(text), "\n// # Files\n")
	at := make(map[string]int) // in the list, by the file's path
	for i, name := range regexp.MustCompile(`\b\w+\.go\b`).FindAllString(list, -1) {
		at[filepath.Join(filepath.Dir(doc), name)] = i
	}
	for _, file := range files {
		if _, listed := at[file]; !listed && file != doc {
			t.Errorf("%s is not in the list of the ledger's doc.go", filepath.Base(file))
		}
	}
	for file, i := range at {
		if !slices.Contains(files, file) {
			t.Errorf("the list of the ledger's doc.go has %s, which does not exist", filepath.Base(file))
		}
		for other := range refers[file] {
			if at[other] > i {
				t.Errorf("%s calls %s, which comes later in the list of the ledger's doc.go",
					filepath.Base(file), filepath.Base(other))
			}
		}
	}
}

// references returns the other files of a package whose functions and methods each file uses. Types
// do not count: those of an instance's parts and of the whole name each other.
func references(t *testing.T, path string, files []string, exports map[string]string) map[string]map[string]bool {
	t.Helper()
	set := token.NewFileSet()
	var parsed []*ast.File
	for _, file := range files {
		f, err := parser.ParseFile(set, file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		parsed = append(parsed, f)
	}
	imports := importer.ForCompiler(set, "gc", func(path string) (io.ReadCloser, error) {
		return os.Open(exports[path])
	})
	info := &types.Info{Uses: make(map[*ast.Ident]types.Object)}
	pkg, err := (&types.Config{Importer: imports}).Check(path, set, parsed, info)
	if err != nil {
		t.Fatal(err)
	}
	refers := make(map[string]map[string]bool)
	for id, object := range info.Uses {
		if object.Pkg() != pkg {
			continue
		}
		_, function := object.(*types.Func)
		from, to := set.Position(id.Pos()).Filename, set.Position(object.Pos()).Filename
		if function && from != to {
			if refers[from] == nil {
				refers[from] = make(map[string]bool)
			}
			refers[from][to] = true
		}
	}
	return refers
}

// reachable returns what a file refers to, directly or through other files.
func reachable(refers map[string]map[string]bool, file string) map[string]bool {
	all := make(map[string]bool)
	for next := []string{file}; len(next) > 0; next = next[1:] {
		for to := range refers[next[0]] {
			if !all[to] {
				all[to] = true
				next = append(next, to)
			}
		}
	}
	return all
}
