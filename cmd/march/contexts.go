package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/internal/smallfile"
)

// contextFile has named sets of settings, of which one is in use: which console and room the commands of
// one cluster call, and with which certificates. So an operator of several clusters names a cluster once,
// and not its addresses at each command.
//
// It is one JSON file that only its owner may read or write. A change replaces the file as a whole, so a
// reader sees it before or after. A context has only strings that the command line takes, and no secrets:
// settings name the files of those.
type contextFile struct {
	// Current is the context that was chosen; empty for none.
	Current string `json:"current,omitempty"`
	// Contexts are values of settings, by the name of the context.
	Contexts map[string]map[string]string `json:"contexts"`
	// Running are the contexts of every march dev that runs, the oldest first. They are not in the file.
	Running []runningContext `json:"-"`
}

const (
	// maxContexts bounds the file, in bytes.
	maxContexts = 1 << 20
	// contextsDirMode is the mode of the file's directory.
	contextsDirMode = 0o700
)

var contextName = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,62}$`)

// contextsPath returns the file's path: march/contexts.json in the user's directory of settings.
func contextsPath() (string, error) {
	dir, err := os.UserConfigDir()
	if err != nil {
		return "", allocator.Errorf(allocator.Invalid,
			"context: there is no directory for contexts: %w; set HOME or XDG_CONFIG_HOME", err)
	}
	return filepath.Join(dir, "march", "contexts.json"), nil
}

// checkContextName checks a context's name. Its error is Invalid.
func checkContextName(text string) error {
	if !contextName.MatchString(text) {
		return allocator.Errorf(allocator.Invalid,
			"context: %q; allowed: 1 to 63 of a-z, 0-9, '.', '_' and '-', beginning with a letter or digit", text)
	}
	return nil
}

// loadContexts reads the file; one that does not exist has no contexts. It also asks every march dev that runs
// for its context. Its error is Invalid.
func loadContexts(path string) (*contextFile, error) {
	file, err := readContexts(path)
	if err == nil {
		file.Running = runningContexts(filepath.Dir(path))
	}
	return file, err
}

func readContexts(path string) (*contextFile, error) {
	content, err := smallfile.Read("context", path, maxContexts)
	if errors.Is(err, fs.ErrNotExist) {
		return &contextFile{Contexts: make(map[string]map[string]string)}, nil
	}
	if err != nil {
		return nil, err
	}
	file := &contextFile{}
	d := json.NewDecoder(bytes.NewReader(bytes.TrimPrefix(content, []byte("\uFEFF"))))
	d.DisallowUnknownFields()
	if err := d.Decode(file); err != nil {
		return nil, allocator.Errorf(allocator.Invalid,
			"context: %s: not a file of contexts: %w; mend or remove it", path, err)
	}
	if file.Contexts == nil {
		file.Contexts = make(map[string]map[string]string)
	}
	for _, name := range file.Names() {
		if err := checkContextName(name); err != nil {
			return nil, allocator.Errorf(allocator.Invalid, "%s: %w", path, err)
		}
	}
	return file, nil
}

// Save replaces the file. Its error is Invalid.
func (f *contextFile) Save(path string) error {
	content, err := json.MarshalIndent(f, "", "  ")
	if err != nil {
		return err
	}
	if err = os.MkdirAll(filepath.Dir(path), contextsDirMode); err == nil {
		err = smallfile.Replace(path, append(content, '\n'))
	}
	if err != nil {
		return allocator.Errorf(allocator.Invalid, "context: %w", err)
	}
	return nil
}

// InUse returns the context of commands that name none: the one that was chosen, or else that of the
// march dev that runs for longest. It is empty for none.
func (f *contextFile) InUse() string {
	if f.Current == "" && len(f.Running) > 0 {
		return f.Running[0].Name
	}
	return f.Current
}

func (f *contextFile) All() map[string]map[string]string {
	all := maps.Clone(f.Contexts)
	for _, r := range f.Running {
		all[r.Name] = r.Settings
	}
	return all
}

// Names returns the names of all contexts, sorted.
func (f *contextFile) Names() []string { return sortedKeys(f.All()) }

// Get returns a context. Its error is NotFound.
func (f *contextFile) Get(name string) (map[string]string, error) {
	settings, ok := f.All()[name]
	if !ok {
		known := "there is none; make one with `march context add`"
		if names := f.Names(); len(names) > 0 {
			known = "known: " + strings.Join(names, ", ")
		}
		return nil, allocator.Errorf(allocator.NotFound, "there is no context %q; %s", name, known)
	}
	return settings, nil
}

// kept checks that a context is in the file. Its errors are NotFound, and Refused for one of a march dev.
func (f *contextFile) kept(name string) error {
	if _, err := f.Get(name); err != nil {
		return err
	}
	if _, ok := f.Contexts[name]; !ok {
		return allocator.Errorf(allocator.Refused, "context %s ends with its march dev, so it cannot be chosen or "+
			"removed; give --context %s, or set MARCH_CONTEXT", name, name)
	}
	return nil
}

// Add adds a context. Its errors are Invalid and Exists.
func (f *contextFile) Add(name string, settings map[string]string) error {
	if err := checkContextName(name); err != nil {
		return err
	}
	if _, there := f.Contexts[name]; there {
		return allocator.Errorf(allocator.Exists,
			"context %s exists already; remove it first, or choose another name", name)
	}
	f.Contexts[name] = settings
	return nil
}

// Use makes a context the chosen one; none is chosen after the empty name. Its errors are NotFound and Refused.
func (f *contextFile) Use(name string) error {
	if name != "" {
		if err := f.kept(name); err != nil {
			return err
		}
	}
	f.Current = name
	return nil
}

// Remove removes a context. If it was chosen, none is. Its errors are NotFound and Refused.
func (f *contextFile) Remove(name string) error {
	if err := f.kept(name); err != nil {
		return err
	}
	delete(f.Contexts, name)
	if f.Current == name {
		f.Current = ""
	}
	return nil
}
