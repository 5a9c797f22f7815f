package testcluster_test

import (
	"fmt"
	"go/ast"
	"go/constant"
	"go/parser"
	"go/token"
	"go/types"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

const (
	module       = "github.com/march-id/march/"
	realTimeList = "testdata/realtime.txt"
	// longEnough is a limit that only ends a test that hangs, however busy the machine is.
	longEnough = 30 * time.Second
)

// TestRealTime holds the repository's tests to testdata/realtime.txt, the list of their uses of real time. The speed
// of a machine must not decide a verdict: a test that needs time runs in a bubble of testing/synctest, or has a clock
// of its own. A use is free where only bubbles and benchmarks reach it, and where it is a limit of half a minute or
// more. A field Timeout counts, too. Each other function with a use has its reason in the list.
func TestRealTime(t *testing.T) {
	t.Parallel()
	reasons := readRealTime(t)
	uses, needed := parseTests(t, "../..").uses(), make(map[string]bool)
	for _, where := range slices.Sorted(maps.Keys(uses)) {
		file, _, _ := strings.Cut(where, " ")
		line := where
		for _, all := range []string{file + " *", path.Dir(file) + " *"} {
			if reasons[all] {
				line = all
			}
		}
		needed[line] = true
		if !reasons[line] {
			t.Errorf("%s uses %s: run it in a bubble of testing/synctest, give it a clock of the test, "+
				"or add it to %s with the reason", where, strings.Join(slices.Sorted(maps.Keys(uses[where])), ", "),
				realTimeList)
		}
	}
	for line := range reasons {
		if !needed[line] {
			t.Errorf("%s: delete %s, which uses no real time", realTimeList, line)
		}
	}
}

// readRealTime returns what is in the list, each as file and function. A line of the list has a file, its
// functions, a colon and the reason; or a file or folder, an asterisk, a colon and the reason.
func readRealTime(t *testing.T) map[string]bool {
	t.Helper()
	text, err := os.ReadFile(realTimeList)
	if err != nil {
		t.Fatal(err)
	}
	reasons := make(map[string]bool)
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		where, reason, _ := strings.Cut(line, ": ")
		fields := strings.Fields(where)
		if len(fields) < 2 || reason == "" {
			t.Fatalf("%s: want a file, functions, a colon and a reason, not %q", realTimeList, line)
		}
		for _, function := range fields[1:] {
			reasons[fields[0]+" "+function] = true
		}
	}
	return reasons
}

// tests are the test files of the repository, and the packages that help them. Their types are checked
// as far as they go without the product and the standard library.
type tests struct {
	fset    *token.FileSet
	files   map[string][]*ast.File // by the import path, with _test for a package of that name
	checked map[string]*types.Package
	info    *types.Info
	bubbles map[types.Object]bool // the functions that run in a bubble what they are given
	nodes   map[types.Object]*node
}

// node is a function, a variable or a type outside of functions.
type node struct {
	path    string // of its file
	reaches map[types.Object]bool
	uses    map[string]bool
}

// root matches what the program of a test calls first, and is no benchmark.
var root = regexp.MustCompile(`^(init$|Test|Fuzz|Example)`)

// stubs are the packages whose constants count.
var stubs = map[string]string{
	"time": `package time
type Duration int64
const (
	Nanosecond Duration = 1
	Microsecond = 1000 * Nanosecond
	Millisecond = 1000 * Microsecond
	Second = 1000 * Millisecond
	Minute = 60 * Second
	Hour = 60 * Minute
)`,
}

func parseTests(t *testing.T, root string) *tests {
	t.Helper()
	s := &tests{fset: token.NewFileSet(), files: make(map[string][]*ast.File), checked: make(map[string]*types.Package),
		info: &types.Info{Defs: make(map[*ast.Ident]types.Object), Uses: make(map[*ast.Ident]types.Object),
			Types: make(map[ast.Expr]types.TypeAndValue)},
		bubbles: make(map[types.Object]bool), nodes: make(map[types.Object]*node)}
	for name, text := range stubs {
		file, err := parser.ParseFile(s.fset, name, text, 0)
		if err != nil {
			t.Fatal(err)
		}
		s.files[name] = append(s.files[name], file)
	}
	err := filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(name, ".go") {
			return err
		}
		short, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		short = filepath.ToSlash(short)
		file, err := parser.ParseFile(s.fset, short, text, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		helps := slices.ContainsFunc(file.Imports, func(i *ast.ImportSpec) bool { return i.Path.Value == `"testing"` })
		of := module + path.Dir(short)
		switch {
		case !strings.HasSuffix(short, "_test.go") && (!helps || file.Name.Name == "main"):
			return nil
		case strings.HasSuffix(file.Name.Name, "_test"):
			of += "_test"
		}
		s.files[of] = append(s.files[of], file)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(s.files) < 50 {
		t.Fatalf("%d packages with tests", len(s.files))
	}
	for of := range s.files {
		_, _ = s.Import(of)
	}
	return s
}

// Import checks a package of tests.
func (s *tests) Import(of string) (*types.Package, error) {
	if pkg := s.checked[of]; pkg != nil {
		return pkg, nil
	}
	if s.files[of] == nil {
		return nil, fmt.Errorf("%s has no tests", of)
	}
	config := types.Config{Importer: s, Error: func(error) {}}
	pkg, _ := config.Check(of, s.fset, s.files[of], s.info) // with errors, as most imports are missing
	s.checked[of] = pkg
	return pkg, nil
}

// uses returns the functions with a use of real time, each as file and function, and what they use.
func (s *tests) uses() map[string]map[string]bool {
	for n := -1; n < len(s.bubbles); { // until a round finds no more
		n = len(s.bubbles)
		s.declarations(func(_ string, _ types.Object, d ast.Node) {
			if f, ok := d.(*ast.FuncDecl); ok {
				s.findBubble(f)
			}
		})
	}
	var roots []types.Object
	s.declarations(func(file string, o types.Object, d ast.Node) {
		n := &node{path: file, reaches: make(map[types.Object]bool), uses: make(map[string]bool)}
		s.nodes[o] = n
		if f, ok := d.(*ast.FuncDecl); ok {
			if recv := f.Recv; recv != nil {
				if of := s.nodes[s.typeOf(recv)]; of != nil {
					of.reaches[o] = true
				} // whoever has a value may call its methods
			} else if root.MatchString(o.Name()) {
				roots = append(roots, o)
			}
			s.read(n, f.Type)
			if f.Body != nil {
				s.read(n, f.Body)
			}
			return
		}
		s.read(n, d)
	})
	seen, found := make(map[types.Object]bool), make(map[string]map[string]bool)
	for len(roots) > 0 {
		o := roots[len(roots)-1]
		roots = roots[:len(roots)-1]
		if n := s.nodes[o]; n != nil && !seen[o] {
			seen[o] = true
			roots = slices.AppendSeq(roots, maps.Keys(n.reaches))
			if len(n.uses) > 0 {
				found[n.path+" "+o.Name()] = n.uses
			}
		}
	}
	return found
}

// declarations calls f for each function, variable and type outside of functions: types first.
func (s *tests) declarations(f func(file string, o types.Object, d ast.Node)) {
	for _, kind := range []token.Token{token.TYPE, token.VAR, token.FUNC} {
		for _, files := range s.files {
			for _, file := range files {
				at := s.fset.Position(file.Pos()).Filename
				for _, d := range file.Decls {
					switch d := d.(type) {
					case *ast.FuncDecl:
						if o := s.info.Defs[d.Name]; kind == token.FUNC && o != nil {
							f(at, o, d)
						}
					case *ast.GenDecl:
						for _, spec := range d.Specs {
							switch spec := spec.(type) {
							case *ast.TypeSpec:
								if kind == token.TYPE {
									f(at, s.info.Defs[spec.Name], spec.Type)
								}
							case *ast.ValueSpec:
								for _, name := range spec.Names {
									if kind == token.VAR && d.Tok == token.VAR && s.info.Defs[name] != nil {
										f(at, s.info.Defs[name], spec)
									}
								}
							}
						}
					}
				}
			}
		}
	}
}

// findBubble adds f if it runs a function that it is given in a bubble.
func (s *tests) findBubble(f *ast.FuncDecl) {
	given := make(map[types.Object]bool)
	for _, p := range f.Type.Params.List {
		for _, name := range p.Names {
			if _, is := p.Type.(*ast.FuncType); is {
				given[s.info.Defs[name]] = true
			}
		}
	}
	if len(given) == 0 || f.Body == nil {
		return
	}
	ast.Inspect(f.Body, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok && s.isBubble(call) {
			ast.Inspect(call, func(n ast.Node) bool {
				if name, ok := n.(*ast.Ident); ok && given[s.info.Uses[name]] {
					s.bubbles[s.info.Defs[f.Name]] = true
				}
				return true
			})
		}
		return true
	})
}

// isBubble reports whether a call runs its arguments in a bubble.
func (s *tests) isBubble(call *ast.CallExpr) bool {
	switch f := call.Fun.(type) {
	case *ast.Ident:
		return s.bubbles[s.info.Uses[f]]
	case *ast.SelectorExpr:
		return s.bubbles[s.info.Uses[f.Sel]] || s.called(f) == "testing/synctest.Test"
	}
	return false
}

// called returns the package and the name of what a selector selects, if that is a package's.
func (s *tests) called(f *ast.SelectorExpr) string {
	of, ok := f.X.(*ast.Ident)
	if !ok {
		return ""
	}
	pkg, ok := s.info.Uses[of].(*types.PkgName)
	if !ok {
		return ""
	}
	return pkg.Imported().Path() + "." + f.Sel.Name
}

// typeOf returns the type that a method belongs to.
func (s *tests) typeOf(recv *ast.FieldList) (o types.Object) {
	ast.Inspect(recv.List[0].Type, func(n ast.Node) bool {
		if name, ok := n.(*ast.Ident); ok && o == nil {
			o = s.info.Uses[name]
		}
		return true
	})
	return o
}

// read notes what code reaches and uses out of bubbles.
func (s *tests) read(in *node, code ast.Node) {
	limits := make(map[ast.Node]bool)
	ast.Inspect(code, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncType: // a parameter's type makes no value
			if n.Results != nil {
				s.read(in, n.Results)
			}
			return false
		case *ast.CallExpr:
			if s.isBubble(n) {
				return false
			}
			if f := s.limits(n); f != nil {
				limits[f] = true
			}
		case *ast.KeyValueExpr: // of a client, say
			if key, ok := n.Key.(*ast.Ident); ok && key.Name == "Timeout" {
				if d := s.constant(n.Value); d > 0 && d < longEnough {
					in.uses["a Timeout of "+d.String()] = true
				}
			}
		case *ast.SelectorExpr:
			switch use := s.called(n); use {
			case "time.Now", "time.Since", "time.Until", "time.Sleep", "time.After", "time.AfterFunc", "time.NewTimer",
				"time.NewTicker", "time.Tick", "context.WithTimeout", "context.WithTimeoutCause":
				if !limits[n] {
					in.uses[use] = true
				}
			}
		case *ast.Ident:
			in.reaches[s.info.Uses[n]] = true
		}
		return true
	})
}

// limits returns the function in a call that makes a time which is far away.
func (s *tests) limits(call *ast.CallExpr) ast.Node {
	f, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return nil
	}
	at := 0
	switch s.called(f) {
	case "time.After", "time.AfterFunc", "time.NewTimer":
	case "context.WithTimeout", "context.WithTimeoutCause":
		at = 1
	default: // a time as far from now
		now, ok := f.X.(*ast.CallExpr)
		if !ok || f.Sel.Name != "Add" {
			return nil
		}
		if f, ok = now.Fun.(*ast.SelectorExpr); !ok || s.called(f) != "time.Now" {
			return nil
		}
	}
	if at >= len(call.Args) {
		return nil
	}
	if s.constant(call.Args[at]).Abs() >= longEnough {
		return f
	}
	return nil
}

// constant returns the duration that an expression is, 0 if it is no constant.
func (s *tests) constant(e ast.Expr) time.Duration {
	v := s.info.Types[e].Value
	if v == nil {
		return 0
	}
	d, _ := constant.Int64Val(constant.ToInt(v))
	return time.Duration(d)
}
