package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/operator"
	"github.com/march-id/march/internal/setting"
)

func newCluster(c *common) *cobra.Command {
	t := c.target()
	type console = marchv1.ConsoleServiceClient
	cmd := group("cluster", "Show and change the settings of the whole cluster",
		newCall(c, t, callRow{use: "show", short: "Show the settings of the whole cluster"},
			&marchv1.GetClusterRequest{}, console.GetCluster, whole,
			func(w *tabwriter.Writer, answer *marchv1.GetClusterResponse) {
				put(w, "cluster\t%s\n", answer.GetUuid())
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
	put(w, "journal\t%s\n", api.Word(settings.GetJournal()))
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
			return finding{refusedf("%s", why)}
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
	put(w, "\nformats %d are turned on, with layout version %d", on, answer.GetLayout().GetLayout().GetVersion())
	switch {
	case on >= newest:
		put(w, "; this console knows none above %d\n", newest)
	case answer.GetRefused() != "":
		put(w, "; %d cannot be turned on yet\n", newest)
	default:
		put(w, "; nothing was changed: --yes turns %d on, and then no instance, console,\n"+
			"command or journal goes back to a version that does not know them\n", newest)
	}
}

func newConfig(c *common) *cobra.Command {
	return group("config",
		"Check the settings of a command, and see where each was set", newConfigPrint(c), newConfigValidate(c))
}

func newConfigPrint(c *common) *cobra.Command {
	cmd := command(callRow{
		use:   "print COMMAND [ARGUMENT...]",
		short: "Print the settings that a command would have, and where each was set",
		long: `Print the settings that a command would have, and where each was set: by a flag,
in the environment, in a line of the file that --config names, or nowhere
("default"). Users and passwords in URLs are hidden. It also names variables of
the environment that begin with MARCH_ and are no setting. Give the flags of the
command after it, and those of print before it.`,
		example: `  march config print room eu-1 --config /etc/march/room-eu-1.yaml`,
	}, nil, func(_ *cobra.Command, args []string) error {
		of, err := c.settled(&common{}, args)
		if err != nil {
			return err
		}
		settings := settledOf(of)
		return c.print(settings, func(w *tabwriter.Writer) {
			put(w, "SETTING\tVALUE\tFROM\n")
			for _, s := range settings {
				put(w, "%s\t%s\t%s\n", s.Name, s.Value, s.Origin)
			}
		})
	})
	cmd.Flags().SetInterspersed(false)
	return c.outputFlag(cmd)
}

func newConfigValidate(c *common) *cobra.Command {
	cmd := command(callRow{
		use: "validate [COMMAND [ARGUMENT...]]", short: "Check the settings of a command, or of a file",
		long: `Check the settings of a command: those of a room or console as its start checks
them, with the files that they name; nothing is asked of etcd, and nothing
listens. Without a command, check the file that --config names: that each
setting exists, and has a value of its type. Exits 2 if one is not allowed.`,
		example: `  march config validate room eu-1 --config /etc/march/room-eu-1.yaml`,
	}, nil, func(cmd *cobra.Command, args []string) error {
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
	})
	cmd.Flags().SetInterspersed(false)
	return cmd
}

// settled returns the command that args name, with its flags and settings set. Its flags are
// bound to as, and it does not run.
func (c *common) settled(as *common, args []string) (*cobra.Command, error) {
	if len(args) == 0 {
		return nil, usagef("takes a command, such as room or console")
	}
	as.stdout, as.stderr, as.commands = c.stdout, c.stderr, c.commands
	root := as.commands(as)
	of, rest, err := root.Find(args)
	if err != nil || of == root || of.HasSubCommands() {
		return nil, usagef("there is no command %q; see `%s --help`", args[0], root.CommandPath())
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
		put(c.stderr, "there is no setting of the environment's %s\n", name)
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
		return usagef("config: nothing to check; give --config FILE or a command")
	}
	root := c.commands(&common{stdout: c.stdout, stderr: c.stderr, commands: c.commands})
	file, err := readSettings(root, c.config)
	if err != nil {
		return usageError{err}
	}
	var errs []error
	said := make(map[string]bool)
	for _, cmd := range tree(root) {
		cmd.PersistentFlags().VisitAll(func(f *pflag.Flag) {
			s, ok := file[f.Name]
			if !ok {
				return
			}
			if err := s.set(f); err != nil && !said[err.Error()] {
				said[err.Error()] = true
				errs = append(errs, err)
			}
		})
	}
	if err := errors.Join(errs...); err != nil {
		return usageError{err}
	}
	_, err = fmt.Fprintf(c.stdout, "%s: all settings are allowed\n", c.config)
	return err
}

func newLayout(c *common) *cobra.Command {
	t := c.target()
	type console = marchv1.ConsoleServiceClient
	cmd := group("layout", "Show, validate and initialise layouts",
		newLayoutInit(c, t),
		newCall(c, t, callRow{use: "show", short: "Show the current layout, or an older one", flags: []rowFlag{
			{"version", "version", "", "the version to show (default the current one)"},
		}}, &marchv1.GetLayoutRequest{}, console.GetLayout, whole, layoutText),
		newCall(c, t, callRow{use: "history", short: "List all layouts so far, the newest first"},
			&marchv1.ListLayoutsRequest{}, allPages(console.ListLayouts, nil), whole,
			listOf(setting.Layouts, (*marchv1.ListLayoutsResponse).GetLayouts)),
		newLayoutValidate(c))
	return c.outputFlag(t.flags(cmd, "console", defaultConsole))
}

func layoutText(w *tabwriter.Writer, answer *marchv1.GetLayoutResponse) {
	if answer.GetLayout() == nil {
		put(w, "no layout can be read\n")
	} else {
		recordText(w, answer.GetLayout(), answer.GetCluster(), answer.GetProblem() != "")
	}
	problemsText(w, answer.GetProblems())
}

const layoutFile = `A layout file is JSON (numbers may be strings, and must be where a reader would
round them):

  {"boundary":100,"rooms":{"a":{"lower":0,"upper":50},"b":{"lower":50,"upper":100}}}

- stands for standard input.`

func newLayoutInit(c *common, t *target) *cobra.Command {
	request := &marchv1.InitLayoutRequest{}
	cmd := newCall(c, t, callRow{
		use: "init FILE", short: "Create the cluster, with its first layout",
		long:    "Create the cluster, with its first layout. This works once, if there is none yet.\n\n" + layoutFile,
		example: `  march layout init layout.json`,
	}, request, marchv1.ConsoleServiceClient.InitLayout, whole, func(w *tabwriter.Writer,
		answer *marchv1.InitLayoutResponse) {
		recordText(w, answer.GetLayout(), answer.GetCluster(), false)
	})
	call := cmd.RunE
	cmd.Args = exactly("a file")
	cmd.RunE = func(cmd *cobra.Command, args []string) (err error) {
		if request.Layout, err = readLayout("file", args[0]); err != nil {
			return err
		}
		return call(cmd, nil)
	}
	return cmd
}

const shardsHelp = "how many shards callers have, where they take the shard id mod N: " +
	"says which rooms would not reach all of them"

func newLayoutValidate(c *common) *cobra.Command {
	var shards int64
	cmd := command(callRow{
		use: "validate FILE...", short: "Check a layout file; needs no server",
		long: `Check a layout file; needs no server. Prints each constraint that is broken and
exits 1 if there is one. So does a room that does not reach all shards of --shards.

` + layoutFile + ` A file may also be of one room, which has the
name of the file, and several files are then one layout:

  {"boundary":100,"lower":0,"upper":50}`,
		example: `  march layout validate layout.json
  march layout validate a.json b.json --shards 64`,
	}, atLeast("a file"), func(_ *cobra.Command, args []string) error {
		file, err := readLayouts(args)
		if err != nil {
			return err
		}
		answer, err := operator.ValidateLayout(file)
		if err != nil {
			return err
		}
		if layout, invalid := api.LayoutFromProto(file); invalid == nil {
			if answer.Problems, err = operator.Unreached(layout, shards); err != nil {
				return usageError{err}
			}
		}
		err = c.print(answer, func(w *tabwriter.Writer) {
			if len(answer.GetProblems()) == 0 {
				put(w, "valid: boundary %d, %s\n", file.GetBoundary(), rangesText(file))
			}
			for _, problem := range answer.GetProblems() {
				put(w, "%s\n", excerpt(problem))
			}
		})
		if err == nil && len(answer.GetProblems()) > 0 {
			return silent{finding{allocator.Invalid}}
		}
		return err
	})
	cmd.Flags().Int64Var(&shards, "shards", 0, shardsHelp)
	return cmd
}

// readLayouts reads a layout from a file, or from a file for each room. A broken one is a finding.
func readLayouts(paths []string) (*marchv1.Layout, error) {
	all := &marchv1.Layout{Rooms: make(map[string]*marchv1.Range)}
	for _, path := range paths {
		content, err := readBounded("file", path, maxLayoutFile)
		if err != nil {
			return nil, err
		}
		room := ofRoom(path, content)
		if room == nil && len(paths) > 1 {
			return nil, usagef(`%s: not of one room; allowed: one layout, or files like `+
				`{"boundary":100,"lower":0,"upper":50}`, path)
		}
		if room != nil {
			content = room
		}
		layout, err := parseLayout(path, content)
		switch {
		case err != nil:
			return nil, finding{err}
		case len(paths) == 1:
			return layout, nil
		case all.GetBoundary() != 0 && all.GetBoundary() != layout.GetBoundary():
			return nil, finding{invalidf("%s: boundary: %d; allowed: %d, as in %s, because all rooms have the same",
				path, layout.GetBoundary(), all.GetBoundary(), paths[0])}
		}
		all.Boundary = layout.GetBoundary()
		for name, r := range layout.GetRooms() {
			if all.GetRooms()[name] != nil {
				return nil, finding{invalidf("%s: room %s is in another file, too", path, name)}
			}
			all.Rooms[name] = r
		}
	}
	return all, nil
}

// ofRoom returns the file of one room as a layout that has this room, by the name of the file; nil for another file.
func ofRoom(path string, content []byte) []byte {
	var fields map[string]json.RawMessage
	if json.Unmarshal(content, &fields) != nil || fields["lower"] == nil || fields["upper"] == nil {
		return nil
	}
	name := strings.TrimSuffix(filepath.Base(path), filepath.Ext(path))
	r := map[string]json.RawMessage{"lower": fields["lower"], "upper": fields["upper"]}
	delete(fields, "lower")
	delete(fields, "upper")
	rooms, err := json.Marshal(map[string]any{name: r})
	fields["rooms"] = rooms
	layout, err2 := json.Marshal(fields)
	if err != nil || err2 != nil {
		return nil
	}
	return layout
}

// silent is an error that was printed already.
type silent struct{ error }

func (silent) Error() string   { return "" }
func (s silent) Unwrap() error { return s.error }

const layoutLooks = `a layout looks like {"boundary":100,"rooms":{"a":{"lower":0,"upper":50}}}, with whole numbers up to 9223372036854775807`

// maxLayoutFile bounds a layout file, in bytes: 64 rooms take 5 KB.
const maxLayoutFile = 1 << 20

func readLayout(setting, path string) (*marchv1.Layout, error) {
	content, err := readBounded(setting, path, maxLayoutFile)
	if err != nil {
		return nil, err
	}
	return parseLayout(path, content)
}

func parseLayout(path string, content []byte) (*marchv1.Layout, error) {
	if len(bytes.TrimSpace(content)) == 0 {
		return nil, invalidf("%s: not a layout: empty; %s", path, layoutLooks)
	}
	layout := &marchv1.Layout{}
	if err := (protojson.UnmarshalOptions{}).Unmarshal(content, layout); err != nil {
		// protojson varies the space after its name on purpose.
		msg := excerpt(strings.TrimLeft(strings.TrimPrefix(err.Error(), "proto:"), "\u00a0 "))
		return nil, invalidf("%s: not a layout: %s; %s", path, msg, layoutLooks)
	}
	return layout, nil
}

// recordText shows a layout. cluster is empty if the identity cannot be read. old is true
// if the layout in force cannot be used, and r is the last good one.
func recordText(w *tabwriter.Writer, r *marchv1.LayoutRecord, cluster string, old bool) {
	if cluster != "" {
		put(w, "cluster\t%s\n", cluster)
	}
	put(w, "layout\t%s\n", layoutVersion(r.GetLayout(), old))
	put(w, "boundary\t%d\n", r.GetLayout().GetBoundary())
	put(w, "since\t%s, by %s\n", r.GetTime().AsTime().Format(time.RFC3339), r.GetActor())
	put(w, "\nROOM\tRANGE\tSHARE\n")
	write := func(what string, of map[string]*marchv1.Range) {
		for _, name := range operator.ByLower(of) {
			lower, upper := of[name].GetLower(), of[name].GetUpper()
			share := float64(upper-lower) / float64(r.GetLayout().GetBoundary())
			put(w, "%s%s\t[%d, %d)\t%.1f%%\n", what, name, lower, upper, 100*share)
		}
	}
	write("", r.GetLayout().GetRooms())
	write("reserved: ", r.GetLayout().GetReserved())
}

func layoutVersion(l *marchv1.Layout, old bool) string {
	if old {
		return fmt.Sprintf("%d, the last good one", l.GetVersion())
	}
	return strconv.FormatInt(l.GetVersion(), 10)
}

// rangesText returns "a [0, 50), b [50, 100)".
func rangesText(l *marchv1.Layout) string { return strings.Join(rangeParts(l), ", ") }

// rangeParts returns "a [0, 50)" of each room.
func rangeParts(l *marchv1.Layout) []string {
	return operator.Ranges(l, func(n any) string { return fmt.Sprint(n) })
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// layoutRows writes a layout as a row of a table: what it is, its picture and its
// ranges. More ranges go on in the rows below; end follows the last one.
func layoutRows(w io.Writer, what string, l *marchv1.Layout, end string) {
	lines := fold(rangeParts(l), ",", rangesWidth)
	lines[len(lines)-1] += end
	put(w, "%s\t%s\t%s\n", what, picture(l), lines[0])
	for _, line := range lines[1:] {
		put(w, "\t\t%s\n", line)
	}
}

func newInstance(c *common) *cobra.Command {
	t := c.target()
	type console = marchv1.ConsoleServiceClient
	cmd := group("instance", "Show the instances of rooms, forget and confirm them",
		newCall(c, t, callRow{use: "list", short: "List the registered instances, alive or silent", flags: []rowFlag{
			{"room", "of", "", "only this room's"},
		}}, &marchv1.ListInstancesRequest{Status: true}, console.ListInstances, whole,
			listOf(setting.Instances, (*marchv1.ListInstancesResponse).GetInstances)),
		destroys(c, newCall(c, t, callRow{
			use: "forget ROOM INSTANCE", short: "Remove the registration of an instance that is gone for good",
			long: `Remove the registration of an instance that is gone for good, so that
migrations do not wait for it. If it still runs, it drops its IDs within seconds
of reaching etcd, and registers anew: of an instance that is alive it asks first.`,
			example: `  march instance forget a host-7`, done: "instance %s/%s forgotten",
		}, &marchv1.ForgetInstanceRequest{}, console.ForgetInstance, whole, nil), func(ctx context.Context,
			args []string) (asked string, err error) {
			err = callConsole(ctx, t, func(ctx context.Context, s console) error {
				answer, err := s.ListInstances(ctx, &marchv1.ListInstancesRequest{Room: args[0]})
				if slices.ContainsFunc(answer.GetInstances(), func(i *marchv1.Instance) bool {
					return i.GetName() == args[1] && i.GetUnreadable() == "" && i.GetSilentFor() == nil
				}) {
					asked = filled("Instance %s/%s is alive, and drops the IDs that it holds. Forget it?", args)
				}
				return err
			})
			return asked, err
		}),
		newCall(c, t, callRow{
			use: "confirm ROOM INSTANCE", short: "Allow an instance that started without its journal to lease",
			long: `Allow an instance that started without its journal to lease, if the cluster
requires journals (` + "`march cluster update --journal required`" + `). You confirm that etcd
did not go back in time since the last ID was leased, or that ` + "`march recover`" + ` was
run since. The instance begins to lease within seconds.`,
			example: `  march instance confirm a host-7`, done: "instance %s/%s confirmed",
		}, &marchv1.ConfirmInstanceRequest{}, console.ConfirmInstance, whole, nil))
	return c.outputFlag(t.flags(cmd, "console", defaultConsole))
}

func newWorker(c *common) *cobra.Command {
	t := c.target()
	cmd := group("worker", "Show the workers of time-ordered IDs", newCall(c, t, callRow{
		use: "list", short: "List all workers taken so far, their owners and windows",
		long: `List the workers of time-ordered IDs that were ever taken: the instance that has each
of them or had it last, and the window of time for which it may use the worker. A pinned
worker keeps its number over restarts. One for a caller is in use in a caller's process.
Below the list are the slices: the workers that each room may take.`,
		example: `  march worker list
  march worker list --bits 10 --room a`,
		flags: []rowFlag{
			{"bits", "bits", "", "only workers of this width: the middle number of the tag's --bits"},
			{"room", "room", "", "only workers that this room has, or had last"},
		},
	}, &marchv1.ListWorkersRequest{}, allPages(marchv1.ConsoleServiceClient.ListWorkers, nil), whole, workersText))
	return c.outputFlag(t.flags(cmd, "console", defaultConsole))
}

func workersText(w *tabwriter.Writer, answer *marchv1.ListWorkersResponse) {
	list(w, setting.Workers, answer.GetWorkers())
	slicesText(w, answer.GetSlices())
}

// slicesText writes the rooms' slices, and how many of their workers are in use.
func slicesText(w *tabwriter.Writer, slices []*marchv1.WorkerSlice) {
	if len(slices) > 0 {
		put(w, "\n")
		list(w, setting.Slices, slices)
	}
}

// measureAfter is how long a console needs to measure rates after a request.
const measureAfter = 1500 * time.Millisecond

func newStatus(c *common) *cobra.Command {
	t := c.target()
	var full bool
	// A console that no page or command asked recently measures rates, and reads tags, meanwhile.
	cmd := newCall(c, t, callRow{
		use: "status", short: "Show the state of every room, the migration under way, and all problems",
		long: `Show what every room does now, the migration that is under way, and all
problems: since when, until when, the next step, and the command. With
--capacity, show instead what runs out at the present rate, the soonest first,
and then the fullest: tags, periods, workers, certificates, reserves, and etcd.
A console measures how etcd, the number of tags and workers grow. It knows that
six hours after its start, and then says a date, or "not growing".`,
		again: func(n int, answer proto.Message) time.Duration {
			o, _ := answer.(*marchv1.GetOverviewResponse)
			if n > 1 || !slices.ContainsFunc(o.GetRooms(), func(r *marchv1.RoomStatus) bool { return r.Rate == nil }) {
				return 0
			}
			return measureAfter
		},
	}, &marchv1.GetOverviewRequest{}, marchv1.ConsoleServiceClient.GetOverview, whole, statusText)
	capacity := newCall(c, t, callRow{use: "status", again: func(n int, _ proto.Message) time.Duration {
		if n > 1 {
			return 0
		}
		return measureAfter
	}}, &marchv1.GetCapacityRequest{}, marchv1.ConsoleServiceClient.GetCapacity, whole,
		listOf(setting.Capacity, (*marchv1.GetCapacityResponse).GetCapacity))
	overview := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if full {
			return capacity.RunE(cmd, args)
		}
		return overview(cmd, args)
	}
	cmd.Flags().BoolVar(&full, "capacity", false, "show what runs out first: tags, periods, workers, certificates, "+
		"reserves, etcd")
	return c.outputFlag(t.flags(cmd, "console", defaultConsole))
}

func statusText(w *tabwriter.Writer, o *marchv1.GetOverviewResponse) {
	if m := o.GetMigration(); m != nil {
		put(w, "migration\t%s: %s, %d of %d moves made\n", m.GetId(), setting.MigrationState(m),
			m.GetReached(), len(m.GetMoves()))
	}
	if l := o.GetLayout().GetLayout(); l != nil {
		put(w, "layout\t%s, boundary %d\n", layoutVersion(l, o.GetProblem() != ""), l.GetBoundary())
		if on, newest := formats(o.GetLayout().GetFormats()), o.GetNewestFormats(); on < newest {
			put(w, "formats\t%d; `march cluster upgrade` turns %d on\n", on, newest)
		} else {
			put(w, "formats\t%d\n", on)
		}
	}
	if o.GetSettings() != nil {
		put(w, "journal\t%s\n", api.Word(o.GetSettings().GetJournal()))
	}
	put(w, "\n")
	table(w, "ROOM\tRANGE\tIDS/S\tREADY\tRESERVE\tLAYOUT\tETCD", o.GetRooms(), func(r *marchv1.RoomStatus) []any {
		issued, etcd := "", cellText(r.GetEtcdLatency())
		if r.Rate != nil {
			issued = setting.Rate(r.GetRate()).String()
		}
		if len(r.GetUnmeasured()) > 0 {
			issued = strings.TrimPrefix(issued+" and unknown of "+cell(r.GetUnmeasured()), " and ")
		}
		if r.GetEtcdAwaySince() != nil {
			etcd = "away since " + cellText(r.GetEtcdAwaySince())
		}
		ready := "-" // until the instances were asked
		if o.GetAsOf() != nil {
			ready = strconv.Itoa(int(r.GetReady()))
		}
		return []any{r.GetName(), r.GetRange(), issued, fmt.Sprintf("%s of %d", ready, r.GetInstances()),
			r.GetReserve(), r.GetVersion(), etcd}
	})
	problemsText(w, o.GetProblems())
}

func newAudit(c *common) *cobra.Command {
	t := c.target()
	var most int
	list := newCall(c, t, callRow{
		use: "list", short: "List changes, the newest first; -o json has the values before and after",
		flags: []rowFlag{
			{"actor", "by", "", "only changes by actors whose name contains this"},
			{"action", "did", "", "only changes whose action contains this, such as update"},
			{"object", "to", "", "only changes of objects that begin with this, such as tags/order"},
			{"since", "since", "", "only changes from this time on: 2026-11-24T15:00:00Z, or as long ago as 2h"},
			{"until", "until", "", "only changes before this time, in the same way"},
		},
	}, &marchv1.ListAuditRequest{}, allPages(marchv1.ConsoleServiceClient.ListAudit,
		func(answer *marchv1.ListAuditResponse) bool { return most > 0 && len(answer.GetEntries()) >= most }),
		func(answer *marchv1.ListAuditResponse) *marchv1.ListAuditResponse {
			if most > 0 {
				answer.Entries = answer.GetEntries()[:min(most, len(answer.GetEntries()))]
			}
			return answer
		}, listOf(setting.Audit, (*marchv1.ListAuditResponse).GetEntries))
	list.Flags().IntVarP(&most, "most", "n", 100, "how many at most; 0 for all")
	list.PreRunE = func(*cobra.Command, []string) error {
		if most < 0 {
			return usagef("most: %d; allowed: 1 or more, 0 for all", most)
		}
		return nil
	}
	cmd := group("audit", "Show changes and their actors", list, newAuditVerify(c))
	return c.outputFlag(t.flags(cmd, "console", defaultConsole))
}
