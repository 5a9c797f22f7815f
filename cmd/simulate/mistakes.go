package main

import (
	"embed"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/march-id/march/internal/overlay"
)

// patches are the mistakes: each file is a patch with a head that says what it breaks, and how it is found.
//
//go:embed mistakes/*.patch
var patches embed.FS

// mistake is one that is made on purpose.
type mistake struct {
	name      string // of its file
	breaks    string // what the code does wrong
	with      string // the fault of the simulation that it shows under, if few seeds have that
	seed      int    // one that found it lately, if few seeds find it: it is tried first
	pkg, test string // the test that finds it if the simulation cannot
	because   string // why the simulation cannot
	edits     []overlay.Edit
}

// readMistakes returns all mistakes, in the order of their names.
func readMistakes() (all []mistake, err error) {
	files, err := patches.ReadDir("mistakes")
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		text, err := patches.ReadFile("mistakes/" + file.Name())
		if err != nil {
			return nil, err
		}
		head, edits := overlay.Parse(string(text))
		m := mistake{name: strings.TrimSuffix(file.Name(), ".patch"), edits: edits}
		for line := range strings.Lines(head) {
			key, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
			switch key {
			case "breaks":
				m.breaks = value
			case "with":
				m.with = value
			case "seed":
				m.seed, err = strconv.Atoi(value)
			case "test":
				m.pkg, m.test, _ = strings.Cut(value, " ")
			case "because":
				m.because = value
			default:
				err = fmt.Errorf("no line of a head begins with %q", key)
			}
			if err != nil {
				return nil, fmt.Errorf("%s: %w", file.Name(), err)
			}
		}
		all = append(all, m)
	}
	return all, nil
}

// selected returns the mistakes with names, which commas separate; all for no name.
func selected(all []mistake, names string) ([]mistake, error) {
	if names == "" {
		return all, nil
	}
	wanted := strings.Split(names, ",")
	todo := slices.DeleteFunc(slices.Clone(all), func(m mistake) bool { return !slices.Contains(wanted, m.name) })
	if len(todo) < len(wanted) {
		return nil, fmt.Errorf("%q are not all mistakes of cmd/simulate/mistakes", wanted)
	}
	return todo, nil
}

// together returns the edits for a program that has all mistakes in it, so that it is built once; MARCH_MUTANT
// chooses the one that it makes. Each function that a mistake changes is there once more as the mistake has it,
// and the function itself calls that one first.
func together(all []mistake) (edits []overlay.Edit, err error) {
	sources := make(map[string]*source)
	for _, m := range all {
		changed, err := overlay.Apply(m.edits)
		if err != nil {
			return nil, fmt.Errorf("mistake %s: %w", m.name, err)
		}
		for file, text := range changed {
			if sources[file] == nil {
				right, err := os.ReadFile(file) //nolint:gosec // of this repository
				if err != nil {
					return nil, err
				}
				if sources[file], err = cut(string(right)); err != nil {
					return nil, err
				}
			}
			wrong, err := cut(text)
			if err != nil {
				return nil, fmt.Errorf("mistake %s: %w", m.name, err)
			}
			if err := sources[file].add(m.name, wrong); err != nil {
				return nil, fmt.Errorf("mistake %s: %s: %w", m.name, file, err)
			}
		}
	}
	for file, s := range sources {
		dir := filepath.Dir(file)
		edits = append(edits, overlay.Edit{File: file, To: s.text()}, overlay.Edit{
			File: filepath.Join(dir, "mutant.go"),
			To:   fmt.Sprintf(chooser, filepath.Base(dir)),
		})
	}
	return edits, nil
}

// chooser is a file of each package that mistakes change.
const chooser = `package %s

import "os"

var chosen = os.Getenv("MARCH_MUTANT")

// mutant reports whether the program is to make a mistake.
func mutant(name string) bool { return name == chosen }
`

// source is the text of a file, cut where its functions begin and end.
type source struct {
	between []string // before each function, and after the last one
	funcs   []string
	decls   []*ast.FuncDecl
	calls   map[int]string // at the beginning of functions, of those with mistakes
	wrong   string         // the functions with mistakes
}

func cut(text string) (*source, error) {
	file, err := parser.ParseFile(token.NewFileSet(), "", text, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	s, end := &source{calls: make(map[int]string)}, 0
	for _, d := range file.Decls {
		if d, ok := d.(*ast.FuncDecl); ok {
			from, to := int(d.Name.Pos()-file.FileStart), int(d.End()-file.FileStart)
			s.between, s.funcs = append(s.between, text[end:from]), append(s.funcs, text[from:to])
			s.decls = append(s.decls, d)
			end = to
		}
	}
	s.between = append(s.between, text[end:])
	return s, nil
}

// add adds a mistake, by the file that has it.
func (s *source) add(name string, wrong *source) error {
	if !slices.Equal(wrong.between, s.between) {
		return errors.New("a mistake changes functions, and nothing else")
	}
	for i, d := range s.decls {
		if wrong.funcs[i] == s.funcs[i] {
			continue
		}
		var args []string
		for _, field := range d.Type.Params.List {
			for _, n := range field.Names {
				args = append(args, n.Name)
				if _, variadic := field.Type.(*ast.Ellipsis); variadic {
					args[len(args)-1] += "..."
				}
			}
		}
		to, receiver := d.Name.Name+"_"+strings.ReplaceAll(name, "-", "_"), ""
		call := to + "(" + strings.Join(args, ", ") + ")"
		if d.Recv != nil {
			receiver = s.between[i][strings.LastIndex(s.between[i], "\nfunc (")+len("\nfunc "):]
			call = d.Recv.List[0].Names[0].Name + "." + call
		}
		if d.Type.Results != nil {
			s.calls[i] += fmt.Sprintf("\n\tif mutant(%q) {\n\t\treturn %s\n\t}", name, call)
		} else {
			s.calls[i] += fmt.Sprintf("\n\tif mutant(%q) {\n\t\t%s\n\t\treturn\n\t}", name, call)
		}
		s.wrong += "\nfunc " + receiver + to + wrong.funcs[i][len(d.Name.Name):] + "\n"
	}
	return nil
}

func (s *source) text() string {
	var b strings.Builder
	for i, d := range s.decls {
		body := int(d.Body.Lbrace-d.Name.Pos()) + 1
		b.WriteString(s.between[i] + s.funcs[i][:body] + s.calls[i] + s.funcs[i][body:])
	}
	b.WriteString(s.between[len(s.decls)] + s.wrong)
	return b.String()
}
