package main

import (
	"errors"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/march-id/march/allocator"
)

// flagError says what is wrong with a flag in the words of all other messages:
// the field, the value, what is allowed.
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

// notAllowed says that a flag does not take value. field is what the user
// called it.
func notAllowed(field string, f *pflag.Flag, value string) error {
	return allocator.Errorf(allocator.Invalid, "%s: %q; allowed: %s", field, value, allowed(f))
}

// allowed says what a flag's type takes.
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

// required demands a flag. (cobra's own check has its own words, and an error
// that cannot be told from others.)
func required(cmd *cobra.Command, flag string) error {
	if cmd.Flags().Changed(flag) {
		return nil
	}
	return usageError{allocator.Errorf(allocator.Invalid, "%s: must be given; see `%s --help`", flag, cmd.CommandPath())}
}
