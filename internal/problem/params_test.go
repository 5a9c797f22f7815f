package problem_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/march-id/march/internal/problem"
)

// Each call of New, and of doctor's judge, gives its row all parameters, and no others: what is missing would be
// shown to operators in braces.
func TestParametersOfEveryCall(t *testing.T) {
	t.Parallel()
	rows := cases(t)
	used := make(map[string]bool)
	err := filepath.WalkDir("../..", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, d := range file.Decls {
			ast.Inspect(d, func(node ast.Node) bool {
				call, is := node.(*ast.CallExpr)
				if !is {
					return true
				}
				at := map[string]int{"problem.New": 0, "New": 0, "f.judge": 2}
				which, is := at[dotted(call.Fun)]
				if !is || which == 0 && dotted(call.Fun) == "New" && file.Name.Name != "problem" ||
					len(call.Args) <= which {
					return true
				}
				if strings.HasSuffix(path, "problem/damage.go") {
					return true // TestDamages has its rows
				}
				names := rowsOf(call.Args[which], file)
				if names == nil && call.Ellipsis.IsValid() {
					return true // judge, which hands on what its callers give
				}
				if names == nil {
					t.Errorf("%s: of which row is %s?", path, dotted(call.Args[which]))
				}
				var given []string
				if !call.Ellipsis.IsValid() {
					for i := which + 2; i < len(call.Args); i++ {
						if text, is := call.Args[i].(*ast.BasicLit); is && text.Kind == token.STRING {
							name, _ := strconv.Unquote(text.Value)
							if (len(call.Args)-i)%2 == 0 {
								given = append(given, name)
							}
						}
					}
				}
				for _, name := range names {
					row, is := rows[name]
					if !is {
						t.Errorf("%s: there is no row %s", path, name)
						continue
					}
					used[name] = true
					if want := parametersOf(row); !slices.Equal(want, sorted(given)) {
						t.Errorf("%s: row %s takes %v, and is given %v", path, name, want, sorted(given))
					}
				}
				return true
			})
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for name := range rows {
		if !used[name] {
			t.Errorf("no call has row %s", name)
		}
	}
}

// cases returns the rows by the names of their constants.
func cases(t *testing.T) map[string]*problem.Row {
	t.Helper()
	file := must(parser.ParseFile(token.NewFileSet(), "table.go", nil, parser.SkipObjectResolution))(t)
	rows := make(map[string]*problem.Row)
	for _, d := range file.Decls {
		block, is := d.(*ast.GenDecl)
		if !is || block.Tok != token.VAR || block.Specs[0].(*ast.ValueSpec).Names[0].Name != "More" {
			continue
		}
		for k, spec := range block.Specs {
			rows[spec.(*ast.ValueSpec).Names[0].Name] = problem.Table[k]
		}
	}
	if len(rows) != len(problem.Table) {
		t.Fatalf("%d names of %d rows", len(rows), len(problem.Table))
	}
	return rows
}

// dotted returns a name, also one of another package.
func dotted(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return dotted(e.X) + "." + e.Sel.Name
	case *ast.IndexExpr:
		return dotted(e.X)
	}
	return ""
}

// rowsOf returns the rows that an expression may be: the one that it names, or those that the file gives the
// variable, the table or the function's parameter of this name.
func rowsOf(e ast.Expr, file *ast.File) []string {
	name := dotted(e)
	if row, is := strings.CutPrefix(name, "problem."); is {
		return []string{row}
	}
	if file.Name.Name == "problem" && ast.IsExported(name) {
		return []string{name}
	}
	found := make(map[string]bool)
	add := func(value ast.Node) {
		ast.Inspect(value, func(node ast.Node) bool {
			if s, is := node.(*ast.SelectorExpr); is && dotted(s.X) == "problem" && s.Sel.Name != "Row" {
				found[s.Sel.Name] = true
			}
			return true
		})
	}
	of := map[string]string{"kind": "wrong"}[name] // a parameter of that function
	ast.Inspect(file, func(node ast.Node) bool {
		switch node := node.(type) {
		case *ast.AssignStmt:
			for k, left := range node.Lhs {
				if dotted(left) == name && k < len(node.Rhs) {
					add(node.Rhs[k])
				}
			}
		case *ast.ValueSpec:
			if node.Names[0].Name == name && len(node.Values) > 0 {
				add(node.Values[0])
			}
		case *ast.CallExpr:
			if of != "" && dotted(node.Fun) == of {
				add(node.Args[0])
			}
		}
		return true
	})
	return slices.Sorted(maps.Keys(found))
}

// parametersOf returns the parameters of a row that New does not set by itself.
func parametersOf(row *problem.Row) []string {
	var names []string
	for _, text := range []string{row.What, row.Effect, row.Remedy, row.Command, row.Page, row.Button} {
		for _, p := range parameter.FindAllString(text, -1) {
			if p = strings.Trim(p, "{}"); !slices.Contains([]string{"of", "room", "instance"}, p) {
				names = append(names, p)
			}
		}
	}
	return sorted(names)
}

func sorted(names []string) []string {
	slices.Sort(names)
	return slices.Compact(names)
}
