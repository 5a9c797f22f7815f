package main

import (
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
	"github.com/spf13/pflag"

	"github.com/march-id/march/allocator"
)

// ofTheHost are the flags whose defaults depend on the host, and what a man page says
// instead: a page is the same on whatever host it was made.
var ofTheHost = map[string]string{"name": "the host's name", "max-busy-streams": "half of the processors"}

// newMan is hidden: packages need it once, operators have `march help`.
func newMan() *cobra.Command {
	return &cobra.Command{
		Use:    "man DIRECTORY",
		Short:  "Write the man pages to a directory",
		Args:   exactly("a directory"),
		Hidden: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := os.MkdirAll(args[0], 0o755); err != nil {
				return allocator.Errorf(allocator.Invalid, "directory: %w", err)
			}
			root := cmd.Root()
			root.DisableAutoGenTag = true // its date is the day on which the page was made
			hostFlags(root)
			return doc.GenManTree(root, &doc.GenManHeader{Section: "1", Source: "March " + build(), Manual: "March"}, args[0])
		},
	}
}

// hostFlags replaces the defaults that depend on the host by words.
func hostFlags(cmd *cobra.Command) {
	cmd.PersistentFlags().VisitAll(func(f *pflag.Flag) {
		if words, ok := ofTheHost[f.Name]; ok && cmd.Name() == "room" {
			f.DefValue = words
		}
	})
	for _, child := range cmd.Commands() {
		hostFlags(child)
	}
}
