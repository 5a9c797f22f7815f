//go:build nodev

package main

import (
	"github.com/spf13/cobra"

	"github.com/march-id/march/allocator"
)

// newDev returns `march dev` of a program for servers, which has no etcd in it.
func newDev(*common) *cobra.Command {
	return &cobra.Command{
		Use: "dev", Short: "Not in this program, which is for servers", Hidden: true, DisableFlagParsing: true,
		RunE: func(*cobra.Command, []string) error {
			return allocator.Errorf(allocator.Invalid, "dev: not in this program, which is for servers; "+
				"the release's archives and packages have it")
		},
	}
}
