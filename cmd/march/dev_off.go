//go:build nodev

package main

import (
	"github.com/spf13/cobra"
)

// newDev returns `march dev` of a program for servers, which has no etcd in it.
func newDev(*common) *cobra.Command {
	return &cobra.Command{
		Use: "dev", Short: "Not in this program, which is for servers", Hidden: true, DisableFlagParsing: true,
		RunE: func(*cobra.Command, []string) error {
			return invalidf("dev: not in this program, which is for servers; " +
				"the release's archives and packages have it")
		},
	}
}
