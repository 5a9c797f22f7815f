package main

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
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
	"cmd/mutants", "cmd/scale", "cmd/simulate", "internal/crash", "internal/overlay", "internal/programs",
	"internal/race", "internal/sim", "internal/skew", "internal/testcerts", "internal/testcluster",
	"internal/testreport", "internal/testservers",
}

var generated = regexp.MustCompile(`(?m)\A(//.*\n)*// Code generated .* DO NOT EDIT\.$`)

// TestBudgets holds the whole repository to testdata/budgets.txt: its hand-written lines, its folders, its
// types, and how many files a reader opens to follow one ID. A limit on each file or folder would only cut one
// idea into several.
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
	got["files on the way of a cold ID"] = len(wayOfAnID(t))
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

// wayOfAnID returns the files that docs/code.md names on the way of an ID of a cold tag.
func wayOfAnID(t *testing.T) (files []string) {
	t.Helper()
	_, page, _ := strings.Cut(readDocument(t, "docs/code.md"), "\n## An ID\n")
	page, _, _ = strings.Cut(page, "\n## ")
	for _, m := range regexp.MustCompile(`(?:[\w./]*/)?(\w+\.go)\b`).FindAllStringSubmatch(page, -1) {
		files = append(files, m[1])
	}
	slices.Sort(files)
	return slices.Compact(files)
}
