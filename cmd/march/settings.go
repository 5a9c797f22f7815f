package main

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/cmd/march/internal/contexts"
	"github.com/march-id/march/cmd/march/internal/origin"
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
	if err := fromEnvironment(cmd.Flags().Lookup("config")); err != nil {
		return err
	}
	file, err := readSettings(cmd.Root(), c.config)
	if err != nil {
		return usageError{err}
	}
	chosen := cmd.Flags().Lookup("context")
	c.contextNamed = chosen.Changed // then it wins over the environment
	if err := fromEnvironment(chosen); err != nil {
		return err
	}
	if s, ok := file[chosen.Name]; ok && !chosen.Changed {
		if err := s.set(fmt.Sprintf("%s:%d: %s", c.config, s.line, chosen.Name), chosen); err != nil {
			return usageError{err}
		}
		origin.Note(chosen, fmt.Sprintf("%s:%d", c.config, s.line))
	}
	fromContext, err := contextOf(cmd, c)
	if err != nil {
		return err
	}
	var errs []error
	visitSettings(cmd, func(f *pflag.Flag) {
		var err error
		if c.contextNamed {
			err = fromContext(f)
		}
		err = errors.Join(err, fromEnvironment(f))
		if f.Name == "log-level" {
			c.levelFixed = f.Changed
		}
		if s, ok := file[f.Name]; err == nil && ok && !f.Changed {
			at := fmt.Sprintf("%s:%d", c.config, s.line)
			if err = s.set(at+": "+f.Name, f); err == nil {
				origin.Note(f, at)
			}
		}
		if err == nil {
			err = fromContext(f)
		}
		if err != nil {
			errs = append(errs, err)
		}
	})
	if err := errors.Join(errs...); err != nil {
		return usageError{err}
	}
	return nil
}

// contextOf returns what sets a flag to its value in the context of a command, unless it is set.
func contextOf(cmd *cobra.Command, c *common) (set func(*pflag.Flag) error, err error) {
	none := func(*pflag.Flag) error { return nil }
	for of := cmd; of.HasParent(); of = of.Parent() {
		if isServer(of) || of.Name() == "context" || of.Name() == "config" {
			return none, nil // `context use` mends what does not exist
		}
	}
	path, err := contexts.Path()
	if err != nil && c.context == "" {
		return none, nil // without a home there are no contexts
	}
	if err != nil {
		return nil, err
	}
	file, err := contexts.Load(path)
	name := c.context
	if err == nil && name == "" {
		name = file.Current
	}
	if err != nil || name == "" {
		return none, err
	}
	settings, err := file.Get(name)
	if err != nil {
		return nil, usageError{err}
	}
	return func(f *pflag.Flag) error {
		value, ok := settings[f.Name]
		if !ok || f.Changed {
			return nil
		}
		if err := (setting{values: []string{value}}).set("context "+name+": "+f.Name, f); err != nil {
			return err
		}
		origin.Note(f, "context "+name)
		return nil
	}, nil
}

// visitSettings calls visit with each setting of a command.
func visitSettings(cmd *cobra.Command, visit func(*pflag.Flag)) {
	cmd.InheritedFlags().VisitAll(visit)
	cmd.PersistentFlags().VisitAll(visit)
}

// variable returns the environment's name for a setting.
func variable(f *pflag.Flag) string {
	return "MARCH_" + strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))
}

func fromEnvironment(f *pflag.Flag) error {
	value, ok := os.LookupEnv(variable(f))
	if !ok || f.Changed {
		return nil
	}
	if err := (setting{values: []string{value}}).set(variable(f), f); err != nil {
		return err
	}
	origin.Note(f, "environment "+variable(f))
	return nil
}

// setting is a value as it was written, or a list of them.
type setting struct {
	values []string
	list   bool
	line   int
}

// set sets f. field is the name that the user gave: flag, variable, or file and
// line.
func (s setting) set(field string, f *pflag.Flag) error {
	list, takesList := f.Value.(pflag.SliceValue)
	var err error
	switch {
	case !s.list:
		err = f.Value.Set(s.values[0])
	case takesList:
		err = list.Replace(s.values)
	default:
		return allocator.Errorf(allocator.Invalid, "%s: a list; allowed: one value", field)
	}
	if err != nil {
		return notAllowed(field, f, strings.Join(s.values, ","))
	}
	f.Changed = true
	return nil
}

// maxSettings bounds the file, in bytes.
const maxSettings = 16 << 10

// readSettings reads a file of settings. Names that no command has are refused.
func readSettings(root *cobra.Command, path string) (map[string]setting, error) {
	if path == "" {
		return nil, nil
	}
	content, err := readBounded(path, maxSettings)
	if err != nil {
		return nil, allocator.Errorf(allocator.Invalid, "config: %w", err)
	}
	settings, err := parseSettings(path, content)
	if err != nil {
		return nil, err
	}
	known := settingNames(root)
	for _, name := range sortedKeys(settings) {
		if !slices.Contains(known, name) {
			return nil, allocator.Errorf(allocator.Invalid, "%s:%d: there is no setting %q; known: %s", path, settings[name].line, name, strings.Join(known, ", "))
		}
	}
	return settings, nil
}

// parseSettings reads a YAML mapping of names to values or lists of them. Values
// stay as they are written: a room named 007 is not room 7.
func parseSettings(path string, content []byte) (map[string]setting, error) {
	tokens := lexer.Tokenize(string(content))
	if t := yamlfile.TooDeep(tokens); t != nil {
		return nil, badSettings(path, t.Position.Line, "brackets nested deeper than %d; allowed: lines of NAME: VALUE", yamlfile.MaxNested)
	}
	file, err := parser.Parse(tokens, 0)
	if err != nil {
		var at yaml.Error
		if errors.As(err, &at) && at.GetToken() != nil {
			return nil, badSettings(path, at.GetToken().Position.Line, "not YAML: %s", excerpt(at.GetMessage()))
		}
		return nil, allocator.Errorf(allocator.Invalid, "%s: not YAML: %s", path, excerpt(err.Error()))
	}
	settings := make(map[string]setting)
	for i, doc := range file.Docs {
		var entries []*ast.MappingValueNode
		switch body := doc.Body.(type) {
		case nil, *ast.CommentGroupNode, *ast.NullNode:
			continue
		case *ast.MappingNode:
			entries = body.Values
		case *ast.MappingValueNode:
			entries = []*ast.MappingValueNode{body}
		default:
			return nil, badSettings(path, line(body), "not settings; allowed: lines of NAME: VALUE")
		}
		if i > 0 {
			return nil, badSettings(path, line(doc.Body), "a second document; allowed: one")
		}
		for _, entry := range entries {
			name, err := scalar(entry.Key)
			if err != nil || !settingName.MatchString(name) {
				return nil, badSettings(path, line(entry.Key), "there is no setting %s", excerpt(fmt.Sprintf("%q", name)))
			}
			if before, twice := settings[name]; twice {
				return nil, badSettings(path, line(entry.Key), "%s: already set in line %d", name, before.line)
			}
			s, err := values(entry.Value)
			if err != nil {
				return nil, badSettings(path, line(entry.Key), "%s: %w; allowed: a value or a list of values", name, err)
			}
			s.line = line(entry.Key)
			settings[name] = s
		}
	}
	return settings, nil
}

var settingName = regexp.MustCompile(`^[a-z][a-z-]{0,62}$`)

func badSettings(path string, line int, format string, args ...any) error {
	return allocator.Errorf(allocator.Invalid, "%s:%d: %w", path, line, fmt.Errorf(format, args...))
}

func line(n ast.Node) int {
	if n == nil || n.GetToken() == nil {
		return 1
	}
	return n.GetToken().Position.Line
}

// values returns the value or the list of values that n is.
func values(n ast.Node) (setting, error) {
	list, ok := n.(*ast.SequenceNode)
	if !ok {
		value, err := scalar(n)
		return setting{values: []string{value}}, err
	}
	s := setting{list: true, values: make([]string, 0, len(list.Values))}
	for _, part := range list.Values {
		value, err := scalar(part)
		if err != nil {
			return setting{}, err
		}
		s.values = append(s.values, value)
	}
	return s, nil
}

// scalar returns the text of a value.
func scalar(n ast.Node) (string, error) {
	switch v := n.(type) {
	case *ast.StringNode:
		return v.Value, nil
	case *ast.LiteralNode:
		return v.Value.Value, nil
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.InfinityNode, *ast.NanNode:
		return v.GetToken().Value, nil
	case nil, *ast.NullNode:
		return "", errors.New("no value")
	case *ast.MappingNode, *ast.MappingValueNode:
		return "", errors.New("a mapping")
	case *ast.SequenceNode:
		return "", errors.New("a list in a list")
	}
	return "", fmt.Errorf("a YAML %s", strings.ToLower(n.Type().String()))
}

// settingNames returns the settings of all commands.
func settingNames(cmd *cobra.Command) []string {
	var names []string
	cmd.PersistentFlags().VisitAll(func(f *pflag.Flag) {
		if f.Name != "config" {
			names = append(names, f.Name)
		}
	})
	for _, child := range cmd.Commands() {
		names = append(names, settingNames(child)...)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// flagError returns the error of a flag in the form of all other messages: the
// field, the value, the allowed values.
func flagError(cmd *cobra.Command, err error) error {
	var value *pflag.InvalidValueError
	var missing *pflag.ValueRequiredError
	switch {
	case errors.As(err, &value):
		return usageError{notAllowed(value.GetFlag().Name, value.GetFlag(), value.GetValue())}
	case errors.As(err, &missing):
		return usageError{allocator.Errorf(allocator.Invalid, "%s: no value is given; allowed: %s", missing.GetFlag().Name, allowed(missing.GetFlag()))}
	}
	return usageError{allocator.Errorf(allocator.Invalid, "%w; see `%s --help`", err, cmd.CommandPath())}
}

// notAllowed returns the error of a value that a flag does not take. field is the
// name that the user gave.
func notAllowed(field string, f *pflag.Flag, value string) error {
	return allocator.Errorf(allocator.Invalid, "%s: %q; allowed: %s", field, value, allowed(f))
}

// allowed describes the values of a flag's type.
func allowed(f *pflag.Flag) string {
	switch f.Value.Type() {
	case "int", "int64":
		return "a whole number up to 9223372036854775807"
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

// required demands a flag. cobra's own check has another wording, and an error of
// no type of its own.
func required(cmd *cobra.Command, flag string) error {
	if cmd.Flags().Changed(flag) {
		return nil
	}
	return usageError{allocator.Errorf(allocator.Invalid, "%s: must be given; see `%s --help`", flag, cmd.CommandPath())}
}
