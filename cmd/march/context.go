package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.etcd.io/etcd/client/pkg/v3/fileutil"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/api"
	"github.com/march-id/march/internal/smallfile"
	"github.com/march-id/march/internal/words"
	"github.com/march-id/march/internal/yamlfile"
)

// newContext is `march context`. root has all other commands: a context may have the settings of
// those that call servers.
func newContext(c *common, root *cobra.Command) *cobra.Command {
	cmd := group("context", "Name clusters, and choose the one that commands call",
		newContextAdd(c, root), newContextList(c),
		changeContexts(c, "use NAME",
			"Make a context the one in use; - for none", func(f *contextFile, name string) error {
				return f.Use(strings.TrimPrefix(name, "-"))
			}),
		changeContexts(c, "remove NAME", "Remove a context", (*contextFile).Remove),
		newContextShow(c))
	cmd.Long = `Name clusters, and choose the one that commands call. A context is a named set
of settings, such as --console and --room. Commands have the settings of the
context in use, of the one that MARCH_CONTEXT names, or of the one that
--context names. Servers have none. Every ` + "`march dev`" + ` has a context, dev:PORT, while it
runs: it is in use where you chose none, and of several the oldest is.

A flag wins over --context, --context over the environment, the environment over
the file of --config, and that over MARCH_CONTEXT and the context in use.
` + "`march config print COMMAND`" + ` shows where each value comes from. The contexts are
in march/contexts.json in your directory of settings; only you can read it.`
	return c.outputFlag(cmd)
}

// inContext is an output of a command that was called with --context: the commands of March that it names as a next
// step have the context, too. They are in backquotes, or the command of a problem in JSON.
type inContext struct {
	io.Writer
	context string
}

func (o inContext) Write(b []byte) (int, error) {
	_, err := io.WriteString(o.Writer, nextCommands.ReplaceAllStringFunc(string(b), func(named string) string {
		begin, verb, _ := strings.Cut(named, "march ")
		if slices.Contains(servers, verb) {
			return named
		}
		return begin + "march --context " + o.context + " " + verb
	}))
	return len(b), err
}

var nextCommands = regexp.MustCompile("(?:`|\"command\": ?\")march [a-z]+")

// withContexts reads the contexts, has use change them, and stores them if it did.
func withContexts(use func(f *contextFile) (changed bool, err error)) error {
	path, err := contextsPath()
	if err != nil {
		return err
	}
	f, err := loadContexts(path)
	if err != nil {
		return err
	}
	changed, err := use(f)
	if err == nil && changed {
		err = f.Save(path)
	}
	return err
}

// contextCommand is a command that takes a context's name, which may be missing where least is 0.
func contextCommand(row callRow, least int, run func(f *contextFile, name string) (changed bool,
	err error)) *cobra.Command {
	cmd := command(row, between(least, "a context's name"), func(_ *cobra.Command, args []string) error {
		return withContexts(func(f *contextFile) (bool, error) { return run(f, strings.Join(args, "")) })
	})
	cmd.ValidArgsFunction = contextNames
	return cmd
}

// changeContexts is a command that changes one context.
func changeContexts(c *common, use, short string, change func(*contextFile, string) error) *cobra.Command {
	return contextCommand(callRow{use: use, short: short}, 1, func(f *contextFile, name string) (bool, error) {
		if err := change(f, name); err != nil {
			return false, err
		}
		inUse := "no context is in use"
		if name := f.InUse(); name != "" {
			inUse = "context " + name + " is in use"
		}
		_, err := fmt.Fprintln(c.stdout, inUse)
		return true, err
	})
}

// contextNames completes the name of a context.
func contextNames(_ *cobra.Command, args []string, begin string) (names []string, _ cobra.ShellCompDirective) {
	if len(args) == 0 {
		_ = withContexts(func(f *contextFile) (bool, error) {
			names = slices.DeleteFunc(f.Names(), func(name string) bool { return !strings.HasPrefix(name, begin) })
			return false, nil
		})
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

func newContextAdd(c *common, root *cobra.Command) *cobra.Command {
	var inUse bool
	known := make(map[string]*pflag.Flag) // the settings of commands that call servers
	cmd := command(callRow{
		use: "add NAME", short: "Add a context with the settings that are given as flags",
		example: `  march context add prod --console one.prod:7001,two.prod:7001 --room room.prod:7010 --etcd etcd-1.prod:2379 --use`,
	}, exactly("a context's name"), func(cmd *cobra.Command, args []string) error {
		given := make(map[string]string)
		var err error
		cmd.Flags().Visit(func(f *pflag.Flag) {
			if of := known[f.Name]; of != nil && cmd.LocalNonPersistentFlags().Lookup(f.Name) == f {
				text, wrong := forAnyFolder(f.Name, f.Value.String())
				given[f.Name] = text
				err = errors.Join(err, wrong, (value{Values: []string{text}, field: f.Name}).set(of))
			}
		})
		if err == nil && len(given) == 0 {
			err = invalidf("a context needs a setting, such as --console HOST:PORT; see `%s --help`", cmd.CommandPath())
		}
		if err != nil {
			return usageError{err}
		}
		return withContexts(func(f *contextFile) (bool, error) {
			if err := f.Add(args[0], given); err != nil {
				return false, err
			}
			if inUse {
				f.Current = args[0]
			}
			_, err := fmt.Fprintf(c.stdout, "context %s added\n", args[0])
			return true, err
		})
	})
	cmd.Flags().BoolVar(&inUse, "use", false, "also make it the context in use")
	for _, of := range tree(root)[1:] {
		of.PersistentFlags().VisitAll(func(f *pflag.Flag) {
			if known[f.Name] == nil && f.Name != "output" && !isServer(of) {
				known[f.Name] = f
				cmd.Flags().String(f.Name, "", f.Usage)
			}
		})
	}
	return cmd
}

// forAnyFolder returns the value of a setting in a context, which counts wherever a command is called: a file has its
// whole path. Its error is Invalid, for an address that is none.
func forAnyFolder(setting, text string) (string, error) {
	switch {
	case setting == "console" || setting == "room":
		for address := range strings.SplitSeq(text, ",") {
			if err := api.CheckAddress(setting, address); err != nil {
				return text, err
			}
		}
	case text != "" && isFile.MatchString(setting), setting == "audit-log" && text != "stdout":
		return filepath.Abs(text)
	}
	return text, nil
}

// isFile matches the settings that are files.
var isFile = regexp.MustCompile(`-(ca|cert|key|file)$`)

func newContextList(c *common) *cobra.Command {
	row := callRow{use: "list", short: "List the contexts; the one in use has a star"}
	return command(row, noArgs, func(*cobra.Command, []string) error {
		return withContexts(func(f *contextFile) (bool, error) {
			all := contextFile{Current: f.InUse(), Contexts: f.All()}
			return false, c.print(all, func(w *tabwriter.Writer) {
				table(w, "IN USE\tNAME\tCONSOLE\tROOM", f.Names(), func(name string) []any {
					star := " "
					if name == all.Current {
						star = "*"
					}
					return []any{star, name, all.Contexts[name]["console"], all.Contexts[name]["room"]}
				})
			})
		})
	})
}

func newContextShow(c *common) *cobra.Command {
	row := callRow{use: "show [NAME]", short: "Show the settings of a context, by default of the one in use"}
	return contextCommand(row, 0, func(f *contextFile, name string) (bool, error) {
		if name = cmp.Or(name, c.context, f.InUse()); name == "" {
			return false, allocator.Errorf(allocator.NotFound,
				"no context is in use; choose one with `march context use`")
		}
		settings, err := f.Get(name)
		if err != nil {
			return false, err
		}
		settings = maps.Clone(settings)
		for setting, value := range settings {
			settings[setting] = words.WithoutSecrets(value)
		}
		return false, c.print(map[string]any{"name": name, "settings": settings}, func(w *tabwriter.Writer) {
			put(w, "context\t%s\n", name)
			for _, setting := range sortedKeys(settings) {
				put(w, "%s\t%s\n", setting, settings[setting])
			}
		})
	})
}

// contextFile has named sets of settings, of which one is in use: which console and room the commands of
// one cluster call, and with which certificates. So an operator of several clusters names a cluster once,
// and not its addresses at each command.
//
// It is one JSON file that only its owner may read or write. A change replaces the file as a whole, so a
// reader sees it before or after. A context has only strings that the command line takes, and no secrets:
// settings name the files of those.
type contextFile struct {
	// Current is the context that was chosen; empty for none.
	Current string `json:"current,omitempty" yaml:"current"`
	// Contexts are values of settings, by the name of the context.
	Contexts map[string]map[string]string `json:"contexts" yaml:"contexts"`
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
		return "", invalidf("context: there is no directory for contexts: %w; set HOME or XDG_CONFIG_HOME", err)
	}
	return filepath.Join(dir, "march", "contexts.json"), nil
}

// checkContextName checks a context's name. Its error is Invalid.
func checkContextName(text string) error {
	if !contextName.MatchString(text) {
		return invalidf("context: %q; allowed: 1 to 63 of a-z, 0-9, '.', '_' and '-', beginning with a letter or digit",
			text)
	}
	return nil
}

// loadContexts reads the file; one that does not exist has no contexts. It also finds the context of every march dev
// that runs. Its error is Invalid.
func loadContexts(path string) (*contextFile, error) {
	file := &contextFile{Contexts: make(map[string]map[string]string), Running: runningContexts(filepath.Dir(path))}
	content, err := smallfile.Read("context", path, maxContexts)
	if errors.Is(err, fs.ErrNotExist) {
		return file, nil
	}
	if err != nil {
		return nil, err
	}
	if err := yamlfile.Read(path, content, file).Err(); err != nil { // JSON is YAML
		return nil, invalidf("context: %s: not a file of contexts; mend or remove it: %w", path, err)
	}
	if file.Contexts == nil {
		file.Contexts = make(map[string]map[string]string)
	}
	for _, name := range sortedKeys(file.Contexts) {
		if err := checkContextName(name); err != nil {
			return nil, invalidf("%s: %w", path, err)
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
		return invalidf("context: %w", err)
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
		return refusedf("context %s ends with its march dev, so it cannot be chosen or "+
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

// runningContext is the context of a march dev that runs: a file beside the file of contexts, with another one that the
// process has locked. The system takes the lock away however the process ends: the context ends then, too.
type runningContext struct {
	Name     string            `json:"-"`
	Since    time.Time         `json:"since"`
	Settings map[string]string `json:"settings"`
}

// The names of these files, by the first port of the cluster, and of the context. No context of the other file can have
// such a name.
const contextOfDev, lockOfDev, devContext = "dev-%d.json", "dev-%d.lock", "dev:%d"

func lockContext(dir string, base int) (*fileutil.LockedFile, error) {
	return fileutil.TryLockFile(filepath.Join(dir, fmt.Sprintf(lockOfDev, base)), os.O_RDWR|os.O_CREATE, 0o600)
}

// announceContext offers the context of a cluster until stop is called. base is the cluster's first port, which
// the calling process must listen at: no other process offers a context of that name then. Its error is Invalid.
func announceContext(base int, settings map[string]string) (name string, stop func(), err error) {
	path, err := contextsPath()
	if err != nil {
		return "", nil, err
	}
	dir := filepath.Dir(path)
	content, err := json.Marshal(runningContext{Since: time.Now(), Settings: settings})
	if err == nil {
		err = os.MkdirAll(dir, contextsDirMode)
	}
	var lock *fileutil.LockedFile
	for tries := 0; err == nil && lock == nil; tries++ {
		if lock, err = lockContext(dir, base); errors.Is(err, fileutil.ErrLocked) && tries < 100 {
			time.Sleep(10 * time.Millisecond) // a command has it for a moment, to see whether this cluster runs
			err = nil
		}
	}
	at := filepath.Join(dir, fmt.Sprintf(contextOfDev, base))
	if err == nil {
		err = smallfile.Replace(at, content)
	}
	if err != nil {
		return "", nil, invalidf("context: %w", err)
	}
	return fmt.Sprintf(devContext, base), func() { _ = errors.Join(os.Remove(at), lock.Close()) }, nil
}

// runningContexts returns the contexts of the clusters that run, by their files in a directory, the oldest first. It
// removes the files of processes that were killed. A home may be on several hosts: what another host's cluster has
// locked stays, and is no context where nothing listens at its address.
func runningContexts(dir string) (all []runningContext) {
	entries, _ := os.ReadDir(dir)
	for _, entry := range entries {
		var base int
		_, _ = fmt.Sscanf(entry.Name(), contextOfDev, &base)
		if entry.Name() != fmt.Sprintf(contextOfDev, base) {
			continue
		}
		at := filepath.Join(dir, entry.Name())
		lock, err := lockContext(dir, base)
		if err == nil { // no process has it
			_ = errors.Join(os.Remove(at), lock.Close())
		}
		if !errors.Is(err, fileutil.ErrLocked) {
			continue
		}
		var r runningContext
		content, err := smallfile.Read("context", at, maxContexts)
		if err == nil && json.Unmarshal(content, &r) == nil && listens(r.Settings["console"]) {
			r.Name = fmt.Sprintf(devContext, base)
			all = append(all, r)
		}
	}
	slices.SortFunc(all, func(a, b runningContext) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Name, b.Name))
	})
	return all
}

func listens(address string) bool {
	conn, err := net.DialTimeout("tcp", address, time.Second)
	if err == nil {
		_ = conn.Close()
	}
	return err == nil
}
