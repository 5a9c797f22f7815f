package main

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/internal/access/policy"
	"github.com/march-id/march/internal/smallfile"
)

func newPolicy(c *common) *cobra.Command {
	return group("policy", "Check a policy, and explain what it allows", newPolicyValidate(c), newPolicyExplain(c))
}

func newPolicyValidate(c *common) *cobra.Command {
	return &cobra.Command{
		Use:   "validate FILE",
		Short: "Check a policy's file, and show each mistake",
		Long: `Check a policy's file, as a server with --policy does, and show each mistake with
its line. Exit code 2 says that there are mistakes.`,
		Example: `  march policy validate policy.yaml`,
		Args:    exactly("a policy's file"),
		RunE: func(_ *cobra.Command, args []string) error {
			if _, err := readPolicy(args[0]); err != nil {
				return err
			}
			_, err := fmt.Fprintf(c.stdout, "%s is a policy\n", args[0])
			return err
		},
	}
}

func newPolicyExplain(c *common) *cobra.Command {
	var path, room string
	cmd := &cobra.Command{
		Use:   "explain SUBJECT CALL TAG",
		Short: "Say whether a subject may make a call for a tag, and why",
		Long: `Say whether a subject may make a call for a tag, and for each grant of the policy
why it allows it or not. A subject with groups is written with commas:
jwt:alice,group:ops. TAG is "" for a call that names no tag. Exit code 1 says
that the call is refused.`,
		Example: `  march policy explain token:shop Next order --policy policy.yaml --room eu-1`,
		Args:    exactly("a subject", "a call", "a tag"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := required(cmd, "policy"); err != nil {
				return err
			}
			p, err := readPolicy(path)
			if err != nil {
				return err
			}
			var names []string
			if args[0] != policy.Anonymous {
				names = strings.Split(args[0], ",")
			}
			call, err := callNamed(args[1], room)
			if err != nil {
				return err
			}
			text, allowed := p.Explain(call, args[2], room, names...)
			if _, err := io.WriteString(c.stdout, text); err != nil || allowed {
				return err
			}
			return finding{errors.New("the policy refuses this call")}
		},
	}
	cmd.PersistentFlags().StringVar(&path, "policy", "", "the policy's file")
	cmd.Flags().StringVar(&room, "room", "", "the room whose server is asked; empty for a console, or for any room")
	return cmd
}

// callNamed returns the call with a name, with or without its service. Without one, a call of
// a room goes before a console's of the same name where a room is named.
func callNamed(name, room string) (*policy.Call, error) {
	var found []*policy.Call
	var known []string
	for _, c := range policy.Calls() {
		service, short, _ := strings.Cut(c.Name(), "/")
		known = append(known, c.Name())
		switch {
		case name == c.Name(), name == c.Method:
			return c, nil
		case name == short && (service == "ConsoleService") == (room == "") || name == short && service == "IDService":
			found = append(found, c)
		}
	}
	if len(found) == 0 {
		return nil, allocator.Errorf(allocator.Invalid, "call: %.100q; allowed: %s", name, strings.Join(known, ", "))
	}
	return found[0], nil
}

func readPolicy(path string) (*policy.Policy, error) {
	content, err := smallfile.Read("policy", path, policy.MaxFile)
	if err != nil {
		return nil, err
	}
	return policy.Parse(path, content)
}
