package main

import (
	"io"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Before, the help took words between back quotes in a flag's description for the name of its
// value: --cluster-uuid march layout show.
func TestFlagsNameTheirValues(t *testing.T) {
	seen := make(map[string]int)
	eachCommand(newRoot(io.Discard, io.Discard), func(cmd *cobra.Command) {
		cmd.InitDefaultHelpFlag()
		for _, flags := range []*pflag.FlagSet{cmd.Flags(), cmd.PersistentFlags()} {
			flags.VisitAll(func(f *pflag.Flag) {
				name, usage := pflag.UnquoteUsage(f)
				seen[name]++
				switch name {
				case "", "string", "strings", "stringArray", "int", "int32", "float", "duration":
				default:
					t.Errorf("%s --%s shows %q as its value", cmd.CommandPath(), f.Name, name)
				}
				if usage == "" && !f.Hidden || strings.Contains(usage, "`") {
					t.Errorf("%s --%s: %q", cmd.CommandPath(), f.Name, usage)
				}
			})
		}
	})
	for _, name := range []string{"", "string", "strings", "int", "duration"} {
		if seen[name] == 0 {
			t.Errorf("no flag has a value called %q", name)
		}
	}
}

func eachCommand(cmd *cobra.Command, do func(*cobra.Command)) {
	do(cmd)
	for _, child := range cmd.Commands() {
		eachCommand(child, do)
	}
}
