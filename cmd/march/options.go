package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/march-id/march/allocator"
)

// option is a row of the table of settings: a flag, a variable of the environment and a key in files have its name.
// Its default is what to has, which points at a field.
type option struct {
	name string // with a letter behind a comma, where the flag has a short form
	to   any    // a pointer, or a pflag.Value
	help string
}

// addOptions gives a command settings.
func addOptions(cmd *cobra.Command, options ...option) *cobra.Command {
	flags := cmd.PersistentFlags()
	for _, o := range options {
		name, letter, _ := strings.Cut(o.name, ",")
		switch to := o.to.(type) {
		case *string:
			flags.StringVarP(to, name, letter, *to, o.help)
		case *[]string:
			flags.StringSliceVarP(to, name, letter, *to, o.help)
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

// usually sets a field to its default.
func usually[T any](to *T, standard T) *T {
	*to = standard
	return to
}

// choice is one of several words.
type choice struct {
	to *string
	of []string
}

// oneOf is a choice of words. The first is the default, where to has none.
func oneOf(to *string, of ...string) choice {
	*to = cmp.Or(*to, of[0])
	return choice{to, of}
}

func (c choice) Set(text string) error {
	if !slices.Contains(c.of, text) {
		return allocator.Errorf(allocator.Invalid, "%.64q; allowed: %s", text, strings.Join(c.of, ", "))
	}
	*c.to = text
	return nil
}

func (c choice) String() string { return *c.to }
func (c choice) Type() string   { return "string" }

// parsed is a name that parse checks.
type parsed[T ~string] struct {
	to    *T
	parse func(string) (T, error)
}

func (p parsed[T]) Set(text string) (err error) {
	if *p.to = T(text); text != "" {
		*p.to, err = p.parse(text)
	}
	return err
}

func (p parsed[T]) String() string { return string(*p.to) }
func (p parsed[T]) Type() string   { return "string" }
