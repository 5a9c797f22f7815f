package main

import (
	"encoding/json"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// build returns this program's version: the module's, or the commit it was
// built from, or "devel".
func build() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "devel"
	}
	if v := info.Main.Version; v != "" && v != "(devel)" {
		return v
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" && len(s.Value) >= 12 {
			return s.Value[:12]
		}
	}
	return "devel"
}

// versionText returns the version as `march version` and `march --version` print it.
func versionText() string {
	return fmt.Sprintf("%s (%s, %s/%s)", build(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

func newVersion(c *common) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version of this program",
		Args:  noArgs,
		RunE: func(*cobra.Command, []string) error {
			if err := c.checkOutput(); err != nil {
				return err
			}
			if c.output == "json" {
				return json.NewEncoder(c.stdout).Encode(map[string]string{
					"version": build(), "go": runtime.Version(), "platform": runtime.GOOS + "/" + runtime.GOARCH,
				})
			}
			_, err := fmt.Fprintf(c.stdout, "march %s\n", versionText())
			return err
		},
	}
	c.outputFlag(cmd)
	return cmd
}
