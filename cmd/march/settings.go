package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/march-id/march/allocator"
)

// settle sets each flag that was not given from the environment or else from
// the file named by --config.
func settle(cmd *cobra.Command, c *common) error {
	if err := fromEnvironment(cmd.Flags().Lookup("config")); err != nil {
		return err
	}
	file, err := readSettings(cmd.Root(), c.config)
	if err != nil {
		return err
	}
	var errs []error
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if f.Name == "help" || f.Changed {
			return
		}
		if err := fromEnvironment(f); err != nil {
			errs = append(errs, err)
			return
		}
		if value, ok := file[f.Name]; ok && !f.Changed {
			if err := set(f, value); err != nil {
				errs = append(errs, usageError{allocator.Errorf(allocator.Invalid, "%s: %s: %w", c.config, f.Name, err)})
			}
		}
	})
	return errors.Join(errs...)
}

// variable returns the environment's name for a flag.
func variable(f *pflag.Flag) string {
	return "MARCH_" + strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))
}

func fromEnvironment(f *pflag.Flag) error {
	value, ok := os.LookupEnv(variable(f))
	if !ok || f.Changed {
		return nil
	}
	if err := set(f, value); err != nil {
		return usageError{allocator.Errorf(allocator.Invalid, "%s: %w", variable(f), err)}
	}
	return nil
}

func set(f *pflag.Flag, value string) error {
	if err := f.Value.Set(value); err != nil {
		return err
	}
	f.Changed = true
	return nil
}

// maxSettings bounds the file, in bytes.
const maxSettings = 1 << 20

// readSettings reads a file of settings: a YAML mapping of flag names to
// scalars or lists of them. Names that no command has are refused.
func readSettings(root *cobra.Command, path string) (map[string]string, error) {
	if path == "" {
		return nil, nil
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, allocator.Errorf(allocator.Invalid, "config: %w", err)
	}
	defer f.Close()
	content, err := io.ReadAll(io.LimitReader(f, maxSettings))
	if err != nil {
		return nil, allocator.Errorf(allocator.Invalid, "config: %w", err)
	}
	var raw map[string]any
	if err := yaml.Unmarshal(content, &raw); err != nil {
		return nil, allocator.Errorf(allocator.Invalid, "%s: %w", path, err)
	}
	known := flagNames(root)
	settings := make(map[string]string, len(raw))
	for name, value := range raw {
		if !slices.Contains(known, name) {
			return nil, allocator.Errorf(allocator.Invalid, "%s: there is no setting %q; known: %s", path, name, strings.Join(known, ", "))
		}
		if settings[name], err = scalar(value); err != nil {
			return nil, allocator.Errorf(allocator.Invalid, "%s: %s: %w", path, name, err)
		}
	}
	return settings, nil
}

func scalar(value any) (string, error) {
	switch v := value.(type) {
	case nil:
		return "", errors.New("no value is given")
	case map[string]any:
		return "", errors.New("a mapping; allowed: a value or a list of values")
	case []any:
		parts := make([]string, len(v))
		for i, part := range v {
			var err error
			if parts[i], err = scalar(part); err != nil {
				return "", err
			}
		}
		return strings.Join(parts, ","), nil
	default:
		return fmt.Sprint(v), nil
	}
}

// flagNames returns the flags of all commands.
func flagNames(cmd *cobra.Command) []string {
	var names []string
	add := func(f *pflag.Flag) {
		if f.Name != "help" && f.Name != "config" {
			names = append(names, f.Name)
		}
	}
	cmd.PersistentFlags().VisitAll(add)
	cmd.LocalFlags().VisitAll(add)
	for _, child := range cmd.Commands() {
		names = append(names, flagNames(child)...)
	}
	slices.Sort(names)
	return slices.Compact(names)
}
