package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/grpc"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
)

func newCluster(c *common) *cobra.Command {
	t := c.target()
	type console = marchv1.ConsoleServiceClient
	cmd := group("cluster", "Show and change the settings of the whole cluster",
		newCall(c, t, callRow{use: "show", short: "Show the settings of the whole cluster"},
			&marchv1.GetClusterRequest{}, console.GetCluster, whole,
			func(w *tabwriter.Writer, answer *marchv1.GetClusterResponse) {
				_, _ = fmt.Fprintf(w, "cluster\t%s\n", answer.GetUuid())
				clusterText(w, answer.GetCluster())
			}),
		newCall(c, t, callRow{
			use: "update", short: "Change settings of the whole cluster; other settings stay as they are",
			long: `Change settings of the whole cluster; other settings stay as they are. Rooms
take them up at once.

--journal required: an instance that starts without its journal leases nothing
until an operator has confirmed its marks (` + "`march instance confirm`" + `). Without that
an etcd whose members' data was rolled back goes unseen by an instance that has no
memory of what came after. Instances that run go on.`,
			example: `  march cluster update --journal required`,
			flags: []rowFlag{
				{"cluster.journal", "journal", "optional",
					"whether instances need their journals: required or optional"},
			},
		}, &marchv1.UpdateClusterRequest{Cluster: &marchv1.Cluster{}}, console.UpdateCluster,
			(*marchv1.UpdateClusterResponse).GetCluster, clusterText),
		newClusterUpgrade(c, t))
	return c.outputFlag(t.flags(cmd, "console", defaultConsole))
}

func clusterText(w *tabwriter.Writer, settings *marchv1.Cluster) {
	_, _ = fmt.Fprintf(w, "journal\t%s\n", api.Word(settings.GetJournal()))
}

func newClusterUpgrade(c *common, t *target) *cobra.Command {
	var yes bool
	var answer *marchv1.UpgradeClusterResponse
	makes := func() bool {
		return answer.GetRefused() == "" && formats(answer.GetLayout().GetFormats()) < answer.GetNewest()
	}
	cmd := newCall(c, t, callRow{
		use: "upgrade", short: "Turn on the newest stored formats, once every registered instance knows them",
		long: `Turn on the newest stored formats that the console knows, once every registered
instance knows them. Until then all versions write the formats of the version
before. Without --yes it shows the builds that run and asks, or, where there is
no terminal, changes nothing.

There is no way back: a version that does not know the formats leases nothing
afterwards, and can read neither the cluster nor the journals. Consoles and
operators' programs are not registered: upgrade them first.

It writes one new version of the layout, with the same ranges. So each tag jumps
once above the IDs of all rooms, as it does with each change of the layout.`,
		example: `  march cluster upgrade
  march cluster upgrade --yes`,
	}, &marchv1.UpgradeClusterRequest{}, func(s marchv1.ConsoleServiceClient, ctx context.Context,
		request *marchv1.UpgradeClusterRequest, _ ...grpc.CallOption) (_ *marchv1.UpgradeClusterResponse, err error) {
		answer, err = s.UpgradeCluster(ctx, &marchv1.UpgradeClusterRequest{DryRun: true})
		if err == nil && yes && makes() {
			answer, err = s.UpgradeCluster(ctx, request)
		}
		return answer, err
	}, whole, upgradeText)
	upgrade := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		err := upgrade(cmd, args)
		if err == nil && !yes && makes() && c.output != "json" && interactive() {
			if err = ask(cmd.Context(), c, "Turn the formats on? There is no way back."); err == nil {
				yes = true
				err = upgrade(cmd, args)
			}
		}
		if why := answer.GetRefused(); err == nil && why != "" {
			return finding{allocator.Errorf(allocator.Refused, "%s", why)}
		}
		return err
	}
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	return cmd
}

// formats returns a generation of stored formats, given the number that a message has.
func formats(told int32) int32 { return max(told, 1) }

// upgradeText writes which formats are on, and which builds run.
func upgradeText(w *tabwriter.Writer, answer *marchv1.UpgradeClusterResponse) {
	table(w, "ROOM\tINSTANCE\tSTATE\tBUILD\tFORMATS", answer.GetInstances(), func(i *marchv1.Instance) []any {
		switch {
		case i.GetUnreadable() != "":
			return []any{i.GetRoom(), i.GetName(), "unreadable", "", ""}
		case i.GetSilentFor() != nil:
			return []any{i.GetRoom(), i.GetName(), "silent", i.GetBuild(), formats(i.GetFormats())}
		case i.GetUnknown():
			return []any{i.GetRoom(), i.GetName(), "unknown", i.GetBuild(), formats(i.GetFormats())}
		}
		return []any{i.GetRoom(), i.GetName(), "alive", i.GetBuild(), formats(i.GetFormats())}
	})
	on, newest := formats(answer.GetLayout().GetFormats()), answer.GetNewest()
	_ = w.Flush()
	_, _ = fmt.Fprintf(w, "\nformats %d are turned on, with layout version %d", on,
		answer.GetLayout().GetLayout().GetVersion())
	switch {
	case on >= newest:
		_, _ = fmt.Fprintf(w, "; this console knows none above %d\n", newest)
	case answer.GetRefused() != "":
		_, _ = fmt.Fprintf(w, "; %d cannot be turned on yet\n", newest)
	default:
		_, _ = fmt.Fprintf(w, "; nothing was changed: --yes turns %d on, and then no instance, console,\n"+
			"command or journal goes back to a version that does not know them\n", newest)
	}
}

func newConfig(c *common) *cobra.Command {
	return group("config",
		"Check the settings of a command, and see where each was set", newConfigPrint(c), newConfigValidate(c))
}

func newConfigPrint(c *common) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "print COMMAND [ARGUMENT...]",
		Short: "Print the settings that a command would have, and where each was set",
		Long: `Print the settings that a command would have, and where each was set: by a flag,
in the environment, in a line of the file that --config names, or nowhere
("default"). Users and passwords in URLs are hidden. It also names variables of
the environment that begin with MARCH_ and are no setting. Give the flags of the
command after it, and those of print before it.`,
		Example: `  march config print room eu-1 --config /etc/march/room-eu-1.yaml`,
		RunE: func(_ *cobra.Command, args []string) error {
			of, err := c.settled(&common{}, args)
			if err != nil {
				return err
			}
			settings := settledOf(func(visit func(*pflag.Flag)) { visitSettings(of, visit) })
			return c.print(settings, func(w *tabwriter.Writer) {
				_, _ = fmt.Fprintln(w, "SETTING\tVALUE\tFROM")
				for _, s := range settings {
					_, _ = fmt.Fprintf(w, "%s\t%s\t%s\n", s.Name, printable(s.Value), s.Origin)
				}
			})
		},
	}
	cmd.Flags().SetInterspersed(false)
	return c.outputFlag(cmd)
}

func newConfigValidate(c *common) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "validate [COMMAND [ARGUMENT...]]",
		Short: "Check the settings of a command, or of a file",
		Long: `Check the settings of a command: those of a room or console as its start checks
them, with the files that they name; nothing is asked of etcd, and nothing
listens. Without a command, check the file that --config names: that each
setting exists, and has a value of its type. Exits 2 if one is not allowed.`,
		Example: `  march config validate room eu-1 --config /etc/march/room-eu-1.yaml`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return c.validateFile()
			}
			of, err := c.settled(&common{checkOnly: true}, args)
			if err != nil {
				return err
			}
			if name := of.Name(); of.Parent() == of.Root() && (name == "room" || name == "console") {
				of.SetContext(cmd.Context())
				if err := of.ValidateArgs(of.Flags().Args()); err != nil {
					return err
				}
				if err := of.RunE(of, of.Flags().Args()); err != nil {
					return err
				}
			}
			_, err = fmt.Fprintf(c.stdout, "the settings of %s are allowed\n", of.CommandPath())
			return err
		},
	}
	cmd.Flags().SetInterspersed(false)
	return cmd
}

// settled returns the command that args name, with its flags and settings set. Its flags are
// bound to as, and it does not run.
func (c *common) settled(as *common, args []string) (*cobra.Command, error) {
	if len(args) == 0 {
		return nil, usageError{allocator.Errorf(allocator.Invalid, "takes a command, such as room or console")}
	}
	as.stdout, as.stderr, as.commands = c.stdout, c.stderr, c.commands
	root := as.commands(as)
	of, rest, err := root.Find(args)
	if err != nil || of == root || of.HasSubCommands() {
		return nil, usageError{allocator.Errorf(allocator.Invalid, "there is no command %q; see `%s --help`",
			args[0], root.CommandPath())}
	}
	if c.config != "" { // it was given before the command
		rest = append([]string{"--config", c.config}, rest...)
	}
	if c.contextNamed {
		rest = append([]string{"--context", c.context}, rest...)
	}
	if err := of.ParseFlags(rest); err != nil {
		return nil, flagError(of, err)
	}
	for _, name := range unknownVariables(root) {
		_, _ = fmt.Fprintf(c.stderr, "there is no setting of the environment's %s\n", name)
	}
	return of, settle(of, as)
}

// ofKubernetes matches the variables that Kubernetes sets for a Service whose name begins with march.
var ofKubernetes = regexp.MustCompile(`_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_\w+)?)$`)

// unknownVariables returns the variables of the environment that look like a setting of a command, and are
// none: misspelt, or of another version.
func unknownVariables(root *cobra.Command) (names []string) {
	known := make(map[string]bool)
	for _, setting := range append(settingNames(root), "config") {
		known[variable(setting)] = true
	}
	for _, text := range os.Environ() {
		name, _, _ := strings.Cut(text, "=")
		if strings.HasPrefix(name, "MARCH_") && !known[name] && !ofKubernetes.MatchString(name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// validateFile checks the file of settings for all commands that have them.
func (c *common) validateFile() error {
	if c.config == "" {
		return usageError{allocator.Errorf(allocator.Invalid,
			"config: nothing to check; give --config FILE or a command")}
	}
	root := c.commands(&common{stdout: c.stdout, stderr: c.stderr, commands: c.commands})
	file, err := readSettings(root, c.config)
	if err != nil {
		return usageError{err}
	}
	var errs []error
	said := make(map[string]bool)
	var visit func(cmd *cobra.Command)
	visit = func(cmd *cobra.Command) {
		cmd.PersistentFlags().VisitAll(func(f *pflag.Flag) {
			s, ok := file[f.Name]
			if !ok {
				return
			}
			if err := s.set(fmt.Sprintf("%s:%d: %s", c.config, s.Line, f.Name), f); err != nil && !said[err.Error()] {
				said[err.Error()] = true
				errs = append(errs, err)
			}
		})
		for _, child := range cmd.Commands() {
			visit(child)
		}
	}
	visit(root)
	if err := errors.Join(errs...); err != nil {
		return usageError{err}
	}
	_, err = fmt.Fprintf(c.stdout, "%s: all settings are allowed\n", c.config)
	return err
}
