package main

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/goccy/go-yaml/ast"
	"github.com/hashicorp/go-hclog"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/api"
	"github.com/march-id/march/internal/setting"
	"github.com/march-id/march/internal/words"
	"github.com/march-id/march/internal/yamlfile"
)

// Settings are the persistent flags. A command's other flags count for one run:
// --force from the environment, or the rooms of dev for `tag skip`, would surprise
// the operator.

// settle gives each setting without a flag its value from the environment, or else
// from the file named by --config.
func settle(cmd *cobra.Command, c *common) error {
	for parent := cmd; parent.HasParent(); parent = parent.Parent() {
		switch parent.Name() {
		case "help", "completion", cobra.ShellCompRequestCmd, cobra.ShellCompNoDescRequestCmd:
			return nil // they ignore settings
		}
	}
	if err := fillFlag(cmd.Flags().Lookup("config"), environment); err != nil {
		return err
	}
	file, err := readSettings(cmd.Root(), c.config)
	if err != nil {
		return usageError{err}
	}
	chosen := cmd.Flags().Lookup("context")
	c.contextNamed = chosen.Changed // then it wins over the environment
	fromFile := func(setting string) (v value, ok bool) { v, ok = file[setting]; return v, ok }
	if err := fillFlag(chosen, environment, fromFile); err != nil {
		return usageError{err}
	}
	fromContext, err := contextOf(cmd, c, environment, fromFile)
	if err != nil {
		return err
	}
	sources := []source{environment, fromFile, fromContext}
	if c.contextNamed {
		sources = []source{fromContext, environment, fromFile}
	}
	if c.contextNamed && !isServer(cmd) {
		c.stdout, c.stderr = inContext{c.stdout, c.context}, inContext{c.stderr, c.context}
	}
	var errs []error
	visitSettings(cmd, func(f *pflag.Flag) {
		if _, set := environment(f.Name); f.Name == "log-level" {
			c.levelFixed = set || f.Changed
		}
		errs = append(errs, fillFlag(f, sources...))
	})
	if err := errors.Join(errs...); err != nil {
		return usageError{err}
	}
	for _, g := range gone {
		if f := cmd.Flags().Lookup(g.flag); f != nil && f.Changed && cmd.CommandPath() == "march "+g.command {
			put(c.stderr, "march %s: --%s has no effect, and goes with the next version: %s\n",
				g.command, g.flag, g.instead)
		}
	}
	return nil
}

// gone are flags of the version before, and what stands in their place. The next version does not accept them.
var gone = func() (list []goneFlag) {
	for _, flag := range []string{"prometheus", "prometheus-token-file", "prometheus-ca", "prometheus-cluster"} {
		list = append(list, goneFlag{"console", flag, "--dashboard URL links to the dashboard in Grafana", true})
	}
	for _, server := range []string{"room", "console"} {
		for _, flag := range []string{"max-stream-answers", "max-busy-streams"} {
			list = append(list, goneFlag{server, flag, "--max-caller-open-streams bounds streams", true})
		}
	}
	return append(list,
		goneFlag{"tag import", "match", "name the keys to redis-cli: redis-cli --scan --pattern 'order:*'", false},
		goneFlag{"tag import", "table",
			"name the table to psql: psql --csv -c 'SELECT biz_tag, max_id, step FROM leaf_alloc'", false})
}()

// goneFlag is a flag that has no effect any more. A setting may stand in the environment and in files, too.
type goneFlag struct {
	command, flag, instead string
	setting                bool
}

func acceptGone(root *cobra.Command) {
	for _, g := range gone {
		cmd, _, err := root.Find(strings.Fields(g.command))
		if err != nil {
			panic(err)
		}
		flags := cmd.Flags()
		if g.setting {
			flags = cmd.PersistentFlags()
		}
		flags.String(g.flag, "", "")
		_ = flags.MarkHidden(g.flag) // fails for a flag that is not there
	}
}

// contextOf returns the settings of the context of a command. given are the sources of other settings.
func contextOf(cmd *cobra.Command, c *common, given ...source) (source, error) {
	none := func(string) (value, bool) { return value{}, false }
	for of := cmd; of.HasParent(); of = of.Parent() {
		if isServer(of) || of.Name() == "context" || of.Name() == "config" {
			return none, nil // `context use` mends what does not exist
		}
	}
	path, err := contextsPath()
	if err != nil && c.context == "" {
		return none, nil // without a home there are no contexts
	}
	if err != nil {
		return nil, err
	}
	file, err := loadContexts(path)
	name := c.context
	if err == nil && name == "" {
		name = file.InUse()
	}
	if err != nil || name == "" {
		return none, err
	}
	chosen, err := file.Get(name)
	if err != nil {
		return nil, usageError{err}
	}
	// A context that nobody chose counts as a whole or not at all: its certificates are not for a server
	// that is named otherwise.
	whole := true
	visitSettings(cmd, func(f *pflag.Flag) {
		_, has := chosen[f.Name]
		for _, s := range given {
			_, set := s(f.Name)
			whole = whole && !(has && (f.Changed || set))
		}
	})
	if c.context == "" && file.Current == "" && !whole {
		return none, nil
	}
	return func(setting string) (value, bool) {
		text, ok := chosen[setting]
		return value{Values: []string{text}, field: "context " + name + ": " + setting, origin: "context " + name}, ok
	}, nil
}

// visitSettings calls visit with each setting of a command.
func visitSettings(cmd *cobra.Command, visit func(*pflag.Flag)) {
	cmd.InheritedFlags().VisitAll(visit)
	cmd.PersistentFlags().VisitAll(visit)
}

// variable returns the environment's name for a setting.
func variable(setting string) string {
	return "MARCH_" + strings.ToUpper(strings.ReplaceAll(setting, "-", "_"))
}

// source has values of settings.
type source func(setting string) (value, bool)

// fillFlag gives a flag that is not set the value of the first source that has one.
func fillFlag(f *pflag.Flag, sources ...source) error {
	for _, s := range sources {
		if v, ok := s(f.Name); ok && !f.Changed {
			if err := v.set(f); err != nil {
				return err
			}
		}
	}
	return nil
}

func environment(setting string) (value, bool) {
	name := variable(setting)
	text, ok := os.LookupEnv(name)
	return value{Values: []string{text}, field: name, origin: "environment " + name}, ok
}

// maxSettings bounds the file, in bytes.
const maxSettings = 16 << 10

// readSettings reads a file of settings. Names that no command has are refused.
func readSettings(root *cobra.Command, path string) (map[string]value, error) {
	if path == "" {
		return nil, nil
	}
	content, err := readBounded("config", path, maxSettings)
	if err != nil {
		return nil, err
	}
	return parseSettings(path, content, settingNames(root))
}

// value is a value of a setting as it was written, or a list of them.
type value struct {
	Values []string
	List   bool
	Line   int

	field  string // the name that the user gave: flag, variable, or file and line with the name
	origin string // the same without the name; empty for a flag
}

// set sets f, and keeps where its value comes from.
func (s value) set(f *pflag.Flag) error {
	list, takesList := f.Value.(pflag.SliceValue)
	var err error
	switch {
	case !s.List:
		err = f.Value.Set(s.Values[0])
	case takesList:
		err = list.Replace(s.Values)
	default:
		return invalidf("%s: a list; allowed: one value", s.field)
	}
	if allocator.KindOf(err) == allocator.Invalid {
		return ofField(s.field, f, err)
	}
	if err != nil {
		return notAllowed(s.field, f, strings.Join(s.Values, ","))
	}
	f.Changed = true
	if s.origin != "" { // else it is a flag's
		f.Annotations = map[string][]string{originNote: {s.origin}}
	}
	return nil
}

// ReadYAML implements yamlfile.Value. Values stay as they are written: a room named 007 is not room 7.
func (s *value) ReadYAML(f *yamlfile.File, at string, node ast.Node) {
	list, isList := node.(*ast.SequenceNode)
	nodes := []ast.Node{node}
	if isList {
		nodes = list.Values
	}
	s.List, s.Line = isList, f.Line(at)
	for _, node := range nodes {
		f.Text(at, node, "a value or a list of values", func(text string) error {
			s.Values = append(s.Values, text)
			return nil
		})
	}
}

// parseSettings reads a YAML mapping of known names to values or lists of them.
func parseSettings(path string, content []byte, known []string) (map[string]value, error) {
	var settings map[string]value
	f := yamlfile.Read(path, content, &settings)
	for name, s := range settings {
		if !slices.Contains(known, name) {
			f.Refuse(yamlfile.Short(name), "there is no setting %q; known: %s", yamlfile.Short(name),
				strings.Join(known, ", "))
		}
		s.origin = fmt.Sprintf("%s:%d", path, s.Line)
		s.field = s.origin + ": " + name
		settings[name] = s
	}
	return settings, f.Err()
}

// ofField returns the error of a value with the name that the user gave before it, in the place of the setting's own.
func ofField(field string, f *pflag.Flag, err error) error {
	return invalidf("%s: %s", field, strings.TrimPrefix(err.Error(), f.Name+": "))
}

// notAllowed returns the error of a value that a flag does not take. field is the
// name that the user gave.
func notAllowed(field string, f *pflag.Flag, text string) error {
	return invalidf("%s: %q; allowed: %s", field, words.WithoutSecrets(text), allowed(f))
}

// allowed describes the values of a flag's type.
func allowed(f *pflag.Flag) string {
	switch f.Value.Type() {
	case "int", "int64":
		return words.Whole
	case "float64":
		return "a number"
	case "duration":
		return "a duration such as 500ms, 5s or 2h30m"
	case "bool":
		return "true or false"
	case "stringSlice":
		return "values separated by commas"
	}
	return "a " + f.Value.Type()
}

func settingNames(root *cobra.Command) (names []string) {
	for _, cmd := range tree(root) {
		cmd.PersistentFlags().VisitAll(func(f *pflag.Flag) {
			if f.Name != "config" {
				names = append(names, f.Name)
			}
		})
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// flagError returns the error of a flag in the form of all other messages: the
// field, the value, the allowed values.
func flagError(cmd *cobra.Command, err error) error {
	var invalid *pflag.InvalidValueError
	var missing *pflag.ValueRequiredError
	switch {
	case errors.As(err, &invalid) && allocator.KindOf(invalid.Unwrap()) == allocator.Invalid:
		return usageError{ofField(invalid.GetFlag().Name, invalid.GetFlag(), invalid.Unwrap())}
	case errors.As(err, &invalid):
		return usageError{notAllowed(invalid.GetFlag().Name, invalid.GetFlag(), invalid.GetValue())}
	case errors.As(err, &missing):
		return usagef("%s: no value is given; allowed: %s", missing.GetFlag().Name, allowed(missing.GetFlag()))
	}
	return usagef("%w; see `%s --help`", err, cmd.CommandPath())
}

// required demands a flag. cobra's own check has another wording, and an error of
// no type of its own.
func required(cmd *cobra.Command, flag string) error {
	if cmd.Flags().Changed(flag) {
		return nil
	}
	return usagef("%s: must be given; see `%s --help`", flag, cmd.CommandPath())
}

// whence adds to a server's error of a setting where its value was set, if that was not a flag. Most values are checked
// by the server that takes them, which does not know.
func whence(cmd *cobra.Command, err error) error {
	if allocator.KindOf(err) != allocator.Invalid {
		return err
	}
	name, _, _ := strings.Cut(err.Error(), ":")
	f := cmd.Flags().Lookup(strings.TrimSuffix(name, " endpoints")) // of etcd
	if f == nil || len(f.Annotations[originNote]) == 0 {
		return err
	}
	return fmt.Errorf("%s: %w", strings.TrimPrefix(f.Annotations[originNote][0], "environment "), err)
}

// rereadLevel sets the log's level from the settings file again at each SIGHUP. The
// function that it returns ends that.
func (c *common) rereadLevel(cmd *cobra.Command, log hclog.Logger, usual hclog.Level) (stop func()) {
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP)
	done := make(chan struct{})
	var work sync.WaitGroup
	work.Go(func() {
		for {
			select {
			case <-done:
				return
			case <-hangup:
				if err := c.readLevel(cmd, log, usual); err != nil {
					log.Warn("log level not changed", "error", err)
				}
			}
		}
	})
	return func() {
		signal.Stop(hangup)
		close(done)
		work.Wait()
	}
}

func (c *common) readLevel(cmd *cobra.Command, log hclog.Logger, usual hclog.Level) error {
	switch {
	case c.levelFixed:
		return errors.New("it was set by a flag or in the environment, which win over the settings file")
	case c.config == "":
		return errors.New("there is no settings file to read again (--config)")
	}
	file, err := readSettings(cmd.Root(), c.config)
	if err != nil {
		return err
	}
	level := usual
	if s, ok := file["log-level"]; ok {
		var name string
		if err := s.set(&pflag.Flag{Name: "log-level", Value: logLevel(&name)}); err != nil {
			return err
		}
		if name != "" {
			level = hclog.LevelFromString(name)
		}
	}
	was := log.GetLevel()
	if was == level {
		return nil
	}
	log.SetLevel(min(was, level)) // so that neither hides the line
	log.Info("log level changed", "from", was.String(), "to", level.String())
	log.SetLevel(level)
	return nil
}

// originNote is the annotation of a flag under which its origin is kept.
const originNote = "march_origin"

// settled is a setting as a command has it.
type settled struct {
	Name   string `json:"name"`
	Value  string `json:"value"` // without secrets
	Origin string `json:"origin"`
}

// settledOf returns the settings of a command, in the order of their names.
func settledOf(cmd *cobra.Command) (list []settled) {
	visitSettings(cmd, func(f *pflag.Flag) {
		s := settled{Name: f.Name, Value: f.Value.String(), Origin: "default"}
		if values, ok := f.Value.(pflag.SliceValue); ok {
			s.Value = strings.Join(values.GetSlice(), ",")
		}
		s.Value = words.WithoutSecrets(s.Value)
		if from := f.Annotations[originNote]; len(from) == 1 {
			s.Origin = from[0]
		} else if f.Changed {
			s.Origin = "flag --" + f.Name
		}
		list = append(list, s)
	})
	slices.SortFunc(list, func(a, b settled) int { return strings.Compare(a.Name, b.Name) })
	return list
}

// isServer reports whether a command is a server: contexts are for those that call servers.
func isServer(cmd *cobra.Command) bool {
	verb, of := strings.CutPrefix(cmd.CommandPath(), "march ")
	return of && slices.Contains(servers, verb)
}

var servers = []string{"dev", "room", "console"}

// option is a row of the table of settings: a flag, a variable of the environment and a key in files have its name.
// Its default is what to has, which points at a field.
type option struct {
	name string // with a letter behind a comma, where the flag has a short form
	to   any    // a pointer, or a pflag.Value
	help string
}

// addOptions gives a command settings.
func addOptions(cmd *cobra.Command, options ...option) *cobra.Command {
	return addTo(cmd, cmd.PersistentFlags(), options)
}

func addTo(cmd *cobra.Command, flags *pflag.FlagSet, options []option) *cobra.Command {
	for _, o := range options {
		name, letter, _ := strings.Cut(o.name, ",")
		switch to := o.to.(type) {
		case *string:
			flags.StringVarP(to, name, letter, *to, o.help)
		case *[]string:
			flags.StringSliceVarP(to, name, letter, *to, o.help)
		case *repeated:
			flags.StringArrayVarP((*[]string)(to), name, letter, *to, o.help)
		case *bool:
			flags.BoolVarP(to, name, letter, *to, o.help)
		case *int:
			flags.IntVarP(to, name, letter, *to, o.help)
		case *int64:
			flags.Int64VarP(to, name, letter, *to, o.help)
		case *float64:
			flags.Float64VarP(to, name, letter, *to, o.help)
		case *time.Duration:
			flags.DurationVarP(to, name, letter, *to, o.help)
		case pflag.Value:
			flags.VarP(to, name, letter, o.help)
		default:
			panic(fmt.Sprintf("the setting %s is a %T", o.name, to))
		}
		if c, ok := o.to.(choice); ok {
			_ = cmd.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(c.of, cobra.ShellCompDirectiveNoFileComp))
		}
	}
	return cmd
}

// repeated is a flag that is given once for each value.
type repeated []string

// addSettings gives a command the settings of a struct, and more.
func addSettings(cmd *cobra.Command, of any, more ...option) *cobra.Command {
	return addOptions(cmd, append(optionsOf(of), more...)...)
}

// addFlags gives a command the flags of a struct. They are no settings: they count for one run.
func addFlags(cmd *cobra.Command, of any) *cobra.Command {
	return addTo(cmd, cmd.Flags(), optionsOf(of))
}

func optionsOf(of any) (list []option) {
	for _, f := range setting.Fields(of) {
		list = append(list, option{f.Name, valueOf(f), f.Get("help")})
	}
	return list
}

// valueOf returns the value of a field as a flag: a pflag.Value where it is read or checked.
func valueOf(f setting.Field) any {
	switch to := f.To.(type) {
	case *allocator.Tag:
		return optional(to, allocator.ParseTag)
	case *allocator.Room:
		return optional(to, allocator.ParseRoom)
	case *string:
		switch words, check := strings.Fields(f.Get("of")), f.Get("check"); {
		case len(words) > 0:
			return oneOf(to, words...)
		case check == "receiver":
			return optional(to, receiver)
		case check == "address": // which others are told
			return optional(to, func(text string) (string, error) { return text, api.CheckAddress(f.Name, text) })
		}
	}
	return f.To
}

// usually sets a field to its default.
func usually[T any](to *T, standard T) *T {
	*to = standard
	return to
}

// choice is one of several words.
type choice struct {
	*parsed[string]
	of []string
}

// oneOf is a choice of words. The first is the default, where to has none.
func oneOf(to *string, of ...string) choice {
	*to = cmp.Or(*to, of[0])
	return choiceOf(to, of...)
}

// logLevel is a choice of the log's levels, or none: then the usual one counts.
func logLevel(to *string) choice {
	levels := choiceOf(to, "trace", "debug", "info", "warn", "error", "off")
	levels.parsed = optional(to, levels.parse)
	return levels
}

func choiceOf(to *string, of ...string) choice {
	return choice{parsedBy(to, *to, func(text string) (string, error) {
		word := strings.ToLower(strings.TrimSpace(text))
		if !slices.Contains(of, word) {
			return word, invalidf("%.64q; allowed: %s", text, strings.Join(of, ", "))
		}
		return word, nil
	}), of}
}

// parsed is a value that a function reads and checks.
type parsed[T any] struct {
	to    *T
	text  string
	parse func(text string) (T, error)
}

// parsedBy is a value of a function's result. standard is the text of the default, which to has.
func parsedBy[T any](to *T, standard string, parse func(string) (T, error)) *parsed[T] {
	return &parsed[T]{to, standard, parse}
}

// optional is a name that parse reads, or none.
func optional[T ~string](to *T, parse func(string) (T, error)) *parsed[T] {
	return parsedBy(to, string(*to), func(text string) (T, error) {
		if text == "" {
			return "", nil
		}
		return parse(text)
	})
}

func (p *parsed[T]) Set(text string) (err error) {
	p.text = text
	*p.to, err = p.parse(text)
	return err
}

func (p *parsed[T]) String() string { return p.text }
func (p *parsed[T]) Type() string   { return "string" }

// listenAt is an address to listen at, which standard is by default.
func listenAt(to *string, standard string) *parsed[string] {
	return parsedBy(usually(to, standard), standard, func(text string) (string, error) {
		_, port, err := net.SplitHostPort(text)
		if err == nil {
			_, err = net.LookupPort("tcp", port)
		}
		if err != nil {
			err = invalidf("%q; allowed: HOST:PORT, with a port of 0 to 65535", text)
		}
		return text, err
	})
}

// listenOrNot is an address to listen at, or none.
func listenOrNot(to *string, standard string) *parsed[string] {
	return optional(to, listenAt(to, standard).parse)
}
