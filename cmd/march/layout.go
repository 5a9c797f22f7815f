package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/operator"
)

func newLayout(c *common) *cobra.Command {
	t := c.target()
	type console = marchv1.ConsoleServiceClient
	cmd := group("layout", "Show, validate and initialise layouts",
		newLayoutInit(c, t),
		newCall(c, t, callRow{use: "show", short: "Show the current layout, or an older one", flags: []rowFlag{
			{"version", "version", "", "the version to show (default the current one)"},
		}}, &marchv1.GetLayoutRequest{}, console.GetLayout, whole, layoutText),
		newCall(c, t, callRow{use: "history", short: "List all layouts so far, the newest first"},
			&marchv1.ListLayoutsRequest{}, allPages(console.ListLayouts, nil), whole, layoutsText),
		newLayoutValidate(c))
	return c.outputFlag(t.flags(cmd, "console", defaultConsole))
}

func layoutText(w *tabwriter.Writer, answer *marchv1.GetLayoutResponse) {
	if answer.GetLayout() == nil {
		_, _ = fmt.Fprintln(w, "no layout can be read")
	} else {
		recordText(w, answer.GetLayout(), answer.GetCluster(), answer.GetProblem() != "")
	}
	problemsText(w, answer.GetProblems())
}

func layoutsText(w *tabwriter.Writer, answer *marchv1.ListLayoutsResponse) {
	table(w, "VERSION\tTIME\tBY\tBOUNDARY\tROOMS", answer.GetLayouts(), func(r *marchv1.LayoutRecord) []any {
		return []any{r.GetLayout().GetVersion(), r.GetTime(), r.GetActor(), r.GetLayout().GetBoundary(),
			cell(rangeParts(r.GetLayout()))}
	})
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
	cmd := &cobra.Command{
		Use:   "validate FILE...",
		Short: "Check a layout file; needs no server",
		Long: `Check a layout file; needs no server. Prints each constraint that is broken and
exits 1 if there is one. So does a room that does not reach all shards of --shards.

` + layoutFile + ` A file may also be of one room, which has the
name of the file, and several files are then one layout:

  {"boundary":100,"lower":0,"upper":50}`,
		Example: `  march layout validate layout.json
  march layout validate a.json b.json --shards 64`,
		Args: atLeast("a file"),
		RunE: func(_ *cobra.Command, args []string) error {
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
					_, _ = fmt.Fprintf(w, "valid: boundary %d, %s\n", file.GetBoundary(), rangesText(file))
				}
				for _, problem := range answer.GetProblems() {
					_, _ = fmt.Fprintln(w, excerpt(problem))
				}
			})
			if err == nil && len(answer.GetProblems()) > 0 {
				return silent{finding{allocator.Invalid}}
			}
			return err
		},
	}
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
			return nil, usageError{allocator.Errorf(allocator.Invalid,
				`%s: not of one room; allowed: one layout, or files like {"boundary":100,"lower":0,"upper":50}`, path)}
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
			return nil, finding{allocator.Errorf(allocator.Invalid,
				"%s: boundary: %d; allowed: %d, as in %s, because all rooms have the same",
				path, layout.GetBoundary(), all.GetBoundary(), paths[0])}
		}
		all.Boundary = layout.GetBoundary()
		for name, r := range layout.GetRooms() {
			if all.GetRooms()[name] != nil {
				return nil, finding{allocator.Errorf(allocator.Invalid,
					"%s: room %s is in another file, too", path, name)}
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
		return nil, allocator.Errorf(allocator.Invalid, "%s: not a layout: empty; %s", path, layoutLooks)
	}
	layout := &marchv1.Layout{}
	if err := (protojson.UnmarshalOptions{}).Unmarshal(content, layout); err != nil {
		// protojson varies the space after its name on purpose.
		msg := excerpt(strings.TrimLeft(strings.TrimPrefix(err.Error(), "proto:"), "\u00a0 "))
		return nil, allocator.Errorf(allocator.Invalid, "%s: not a layout: %s; %s", path, msg, layoutLooks)
	}
	return layout, nil
}

// recordText shows a layout. cluster is empty if the identity cannot be read. old is true
// if the layout in force cannot be used, and r is the last good one.
func recordText(w *tabwriter.Writer, r *marchv1.LayoutRecord, cluster string, old bool) {
	if cluster != "" {
		_, _ = fmt.Fprintf(w, "cluster\t%s\n", cluster)
	}
	_, _ = fmt.Fprintf(w, "layout\t%s\n", layoutVersion(r.GetLayout(), old))
	_, _ = fmt.Fprintf(w, "boundary\t%d\n", r.GetLayout().GetBoundary())
	_, _ = fmt.Fprintf(w, "since\t%s, by %s\n", r.GetTime().AsTime().Format(time.RFC3339), r.GetActor())
	_, _ = fmt.Fprintln(w, "\nROOM\tRANGE\tSHARE")
	write := func(what string, of map[string]*marchv1.Range) {
		for _, name := range operator.ByLower(of) {
			lower, upper := of[name].GetLower(), of[name].GetUpper()
			share := float64(upper-lower) / float64(r.GetLayout().GetBoundary())
			_, _ = fmt.Fprintf(w, "%s%s\t[%d, %d)\t%.1f%%\n", what, name, lower, upper, 100*share)
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
	_, _ = fmt.Fprintf(w, "%s\t%s\t%s\n", what, picture(l), lines[0])
	for _, line := range lines[1:] {
		_, _ = fmt.Fprintf(w, "\t\t%s\n", line)
	}
}
