package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// proofFolders have the programs and packages that only prove the product, besides test files.
var proofFolders = []string{
	".ci", "allocator/ledger/ledgertest", "allocator/ledger/model", "cmd/bench", "cmd/chaos", "cmd/internal",
	"cmd/simulate", "internal/crash", "internal/overlay", "internal/programs",
	"internal/race", "internal/sim", "internal/skew", "internal/testcerts", "internal/testcluster",
	"internal/testreport", "internal/testservers",
}

var generated = regexp.MustCompile(`(?m)\A(//.*\n)*// Code generated .* DO NOT EDIT\.$`)

// TestBudgets holds the whole repository to testdata/budgets.txt: its hand-written lines, its folders, its
// types, and how many files a reader opens to follow one ID, or one lease. A limit on each file or folder would
// only cut one idea into several.
func TestBudgets(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("testdata/budgets.txt")
	if err != nil {
		t.Fatal(err)
	}
	budgets := make(map[string]int)
	for line := range strings.Lines(string(text)) {
		if n, what, ok := strings.Cut(strings.TrimSpace(line), " "); ok && n != "#" {
			if budgets[what], err = strconv.Atoi(n); err != nil {
				t.Fatal(err)
			}
		}
	}
	got := sizes(t, filepath.Join("..", ".."))
	for heading, of := range map[string]string{"An ID": "a cold ID", "A lease": "a lease"} {
		got["files on the way of "+of], got["returns on the way of "+of] = wayOf(t, heading)
	}
	for _, what := range sortedKeys(got) {
		t.Logf("%d %s", got[what], what)
		switch budget, ok := budgets[what]; {
		case !ok:
			t.Errorf("budgets.txt has no line of %s", what)
		case got[what] > budget:
			t.Errorf("%d %s, and the budget is %d: make it smaller, or raise the budget and say why",
				got[what], what, budget)
		case got[what] < budget/2:
			t.Errorf("%d %s, and the budget is %d: lower it, or mend how the test counts", got[what], what, budget)
		}
		delete(budgets, what)
	}
	if len(budgets) > 0 {
		t.Errorf("nothing counts %v", sortedKeys(budgets))
	}
}

// sizes counts what the Go files below a folder have, without generated ones.
func sizes(t *testing.T, root string) map[string]int {
	t.Helper()
	got, folders, methods := make(map[string]int), make(map[string]bool), make(map[string]int)
	if err := filepath.WalkDir(root, func(file string, entry fs.DirEntry, err error) error {
		name := filepath.ToSlash(strings.TrimPrefix(file, root+string(filepath.Separator)))
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (entry.Name() == ".git" || name == "bin"):
			return filepath.SkipDir
		case entry.IsDir() || path.Ext(name) != ".go":
			return nil
		}
		text, err := os.ReadFile(file) //nolint:gosec // the repository's own
		if err != nil || generated.Match(text) {
			return err
		}
		kind := "lines of product"
		switch {
		case strings.HasSuffix(name, "_test.go"):
			kind = "lines of tests"
		case slices.ContainsFunc(proofFolders, func(of string) bool { return strings.HasPrefix(name, of+"/") }):
			kind = "lines of proof"
		default:
			for _, of := range receivers(t, file, text) {
				methods[path.Dir(name)+"."+of]++
			}
		}
		got[kind] += bytes.Count(text, []byte("\n"))
		folders[path.Dir(name)] = true
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	most := ""
	for of, n := range methods {
		if n > methods[most] {
			most = of
		}
	}
	t.Logf("the type with the most methods is %s", most)
	got["methods on one type"], got["folders with Go"] = methods[most], len(folders)
	return got
}

// receivers returns the name of the type of each method that a file declares.
func receivers(t *testing.T, file string, text []byte) (types []string) {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), file, text, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range parsed.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok || f.Recv == nil {
			continue
		}
		of := f.Recv.List[0].Type
		if pointer, ok := of.(*ast.StarExpr); ok {
			of = pointer.X
		}
		if generic, ok := of.(*ast.IndexExpr); ok {
			of = generic.X
		}
		if name, ok := of.(*ast.Ident); ok {
			types = append(types, name.Name)
		}
	}
	return types
}

// wayOf returns how many files the list below a heading of docs/code.md names, and how often it returns to one that it
// left.
func wayOf(t *testing.T, heading string) (files, returns int) {
	t.Helper()
	_, page, _ := strings.Cut(readDocument(t, "docs/code.md"), "\n## "+heading+"\n")
	_, page, _ = strings.Cut(page, "\n\n1. ")
	page, _, _ = strings.Cut(page, "\n\n")
	at, seen := "", make(map[string]bool)
	for _, m := range regexp.MustCompile(`(?:[\w./]*/)?(\w+\.go)\b`).FindAllStringSubmatch(page, -1) {
		if m[1] != at && seen[m[1]] {
			returns++
		}
		at, seen[m[1]] = m[1], true
	}
	return len(seen), returns
}

// arrows are the imports that the project's layout rests on: the packages under a path may
// not reach the listed packages, through any of their imports. All are without the
// module's name, or of another module.
var arrows = []struct {
	from string
	not  []string
}{
	{"api", []string{"allocator/ledger", "room", "console", "internal", "go.etcd.io"}},
	{"allocator", []string{"api", "room", "console", "internal/serve", "internal/operator"}},
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
		"cmd/chaos", "cmd/bench"},
		func(path string) bool { return under(pkg, path) })
}

// cycles are the packages of the ledger whose files call each other in a circle, with the most files
// of a circle. In the others the files have an order in which each calls only earlier ones: a
// reader can begin with the first. The ledger's doc.go tells its order: see ledgerOrder.
var cycles = map[string]int{
	"allocator/ledger/ledgertest": 5, // the fake decides what becomes of a transaction, and has an etcd below
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
