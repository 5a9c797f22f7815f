package main

import (
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
)

func newEtcd(c *common) *cobra.Command {
	var cluster string
	var tags, certificates, upgraded bool
	roles := &cobra.Command{
		Use:   "roles ROOM...",
		Short: "Print the etcdctl commands that make a role and a user for each room, for consoles and for operators",
		Long: `Print the etcdctl commands that make a role and a user for each room, for consoles
and for operators. Nothing is asked of etcd, and nothing changes. All roles read
all keys of the cluster. A room writes its own marks, registrations and
heartbeats, workers and machine IDs, and those of no other room. It also writes
the epoch, the beat and the audit. A console writes no workers. An operator, whose
commands such as recover and halt reach etcd, writes all keys.

A user's password is read from the file that the command names: NAME.password.
Servers read it from --etcd-password-file, again after etcd refused it, so a
changed password needs no restart. The commands may run again, with "sh -e" too:
for a room that is new, or a right that a room lacks. etcd keeps what it has, and
the passwords that its users have.

Before "march cluster upgrade", rooms also write keys of workers and machine IDs
that all of them share. Run the commands without --upgraded before it, and those
with --upgraded after it: they take these rights away.

With these roles an instance cannot raise the marks of another room. A recover
that goes on without the instance then makes it halt leasing, in all rooms.`,
		Example: `  march etcd roles eu-1 eu-2 us-1 > roles.sh`,
		Args:    atLeast("a room"),
		RunE: func(_ *cobra.Command, args []string) error {
			keys, err := record.NewKeys(cluster)
			if err != nil {
				return err
			}
			all := []record.Role{keys.ConsoleRole(), keys.OperatorRole()}
			for _, arg := range args {
				room, err := allocator.ParseRoom(arg)
				if err != nil {
					return err
				}
				all = append(all, keys.RoomRole(room, tags))
			}
			_, err = io.WriteString(c.stdout, rolesScript(all, certificates, upgraded))
			return err
		},
	}
	flags := roles.Flags()
	roles.PersistentFlags().StringVar(&cluster, "cluster", "default",
		"the cluster's name: its keys are under /march/NAME/")
	flags.BoolVar(&tags, "room-tags", false, "let rooms write tags' settings, too: "+
		"for operators who change tags at a room, and for rooms that create tags")
	flags.BoolVar(&certificates, "certificates", false,
		"make users without a password: etcd knows them by the common name of their client certificates")
	flags.BoolVar(&upgraded, "upgraded", false,
		"of a cluster with the formats of this version (march cluster upgrade): "+
			"take away the rights that rooms needed before")
	return group("etcd", "Make users and roles of etcd for rooms, consoles and operators", roles)
}

// rolesScript returns the commands that make roles, and a user for each of them.
func rolesScript(roles []record.Role, certificates, upgraded bool) string {
	var b strings.Builder
	for _, role := range roles {
		how := "--interactive=false < " + role.Name + ".password"
		if certificates {
			how = "--no-password"
		}
		for _, command := range slices.Concat(role.Commands(upgraded), role.UserCommands(how)) {
			b.WriteString(command + "\n")
		}
		b.WriteString("\n")
	}
	b.WriteString("# once etcd has a user root with the role root: etcdctl auth enable\n")
	return b.String()
}
