package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/operator"
	"github.com/march-id/march/internal/setting"
	"github.com/march-id/march/internal/yamlfile"
)

func newExport(c *common) *cobra.Command {
	t := c.target()
	cmd := command(callRow{
		use: "export", short: "Write the layout and the tags as a file for `march apply`",
		example: `  march export > cluster.yaml`,
	}, noArgs, func(cmd *cobra.Command, _ []string) error {
		layout, tags, err := readCluster(cmd, t)
		if err != nil {
			return err
		}
		content, err := exportManifest(layout, tags)
		if err == nil {
			_, err = c.stdout.Write(content)
		}
		return err
	})
	return t.flags(cmd, "console", defaultConsole)
}

// readCluster returns the layout and all tags. Its error is Refused if one of them cannot be
// read: an apply would take it as absent.
func readCluster(cmd *cobra.Command, t *target) (layout *marchv1.Layout, tags []*marchv1.Tag, err error) {
	err = callConsole(cmd.Context(), t, func(ctx context.Context, s marchv1.ConsoleServiceClient) error {
		answer, err := s.GetLayout(ctx, &marchv1.GetLayoutRequest{})
		if err != nil {
			return err
		}
		if answer.GetProblem() != "" {
			return refusedf("the layout cannot be used: %s", answer.GetProblem())
		}
		list, err := allPages(marchv1.ConsoleServiceClient.ListTags, nil)(s, ctx, &marchv1.ListTagsRequest{})
		if u := list.GetUnreadable(); err == nil && len(u) > 0 {
			err = refusedf("key %q cannot be read: %s", u[0].GetKey(), u[0].GetWhy())
		}
		layout, tags = answer.GetLayout().GetLayout(), list.GetTags()
		return err
	})
	return layout, tags, err
}

type applying struct {
	c          *common
	t          *target
	file       *manifest
	applyFlags `json:"-"`
	Diff       manifestDiff    `json:"diff"`
	Plan       json.RawMessage `json:"plan"`    // null where the layout stays
	Applied    bool            `json:"applied"` // false with --dry-run
	plan       *marchv1.Plan
	count      string
}

type applyFlags struct {
	Path   string        `flag:"file,f" help:"the file, - for standard input"`
	Dry    bool          `flag:"dry-run" help:"only show the difference"`
	Prune  bool          `flag:"prune" help:"delete the tags that the file does not have"`
	Atomic bool          `flag:"atomic" help:"change the layout in one move, of whatever kind it then is: a switch, if it must be"`
	Force  bool          `flag:"force" help:"also move to a layout that may leave a room no ID of a tag, or whose boundary is above a thousandth of the IDs that a tag has left"`
	Hold   time.Duration `flag:"hold" help:"how long at least a move waits for a silent instance (default the instance's own --hold)"`
	Yes    bool          `flag:"yes,y" help:"do not ask; limits that stop rooms are lowered, too"`
}

func newApply(c *common) *cobra.Command {
	a := &applying{c: c, t: c.target()}
	cmd := command(callRow{
		use: "apply -f FILE", short: "Make the layout and the tags those of a file",
		long: `Make the layout and the tags those of a file, which march export writes. The
difference is shown first, and applied once it is agreed to. If the cluster
changes meanwhile, apply refuses to go on: each tag is written only if it is the
one that was compared.

A layout or tag that the file does not have stays as it is; with --prune such
tags are deleted. A setting that a tag of the file does not have gets its
default. First the layout moves, as by march migrate apply, then the tags
change. After ^C a migration goes on, and the tags stay: apply the file again.`,
		example: `  march export > cluster.yaml
  march apply -f cluster.yaml --dry-run`,
	}, noArgs, func(cmd *cobra.Command, _ []string) error {
		if err := required(cmd, "file"); err != nil {
			return err
		}
		content, err := readBounded("file", a.Path, maxManifest)
		if err == nil {
			a.file, err = parseManifest(a.Path, content)
		}
		if err != nil {
			return err
		}
		return a.run(cmd)
	})
	a.t.flags(cmd, "console", defaultConsole)
	c.outputFlag(cmd)
	return addFlags(cmd, &a.applyFlags)
}

func (a *applying) run(cmd *cobra.Command) error {
	diff, err := a.diff(cmd)
	if err != nil {
		return err
	}
	a.Diff = diff
	if diff.Layout != nil {
		if err := a.planLayout(cmd); err != nil {
			return err
		}
	}
	if !a.Dry && !diff.Empty() && !a.Yes {
		if a.Path == "-" || !interactive() {
			return cannotAsk()
		}
		a.show(a.c.stderr)
		if err := ask(cmd.Context(), a.c, "Apply this?"); err != nil {
			return err
		}
	}
	if a.c.output == "text" && (a.Dry || a.Yes || diff.Empty()) {
		a.show(a.c.stdout)
	}
	if !a.Dry && !diff.Empty() {
		if err := a.apply(cmd); err != nil {
			return err
		}
		a.Applied = true
	}
	return a.c.print(a, func(*tabwriter.Writer) {}) // its text was shown before
}

// diff reads the cluster, and compares it with the file.
func (a *applying) diff(cmd *cobra.Command) (manifestDiff, error) {
	layout, tags, err := readCluster(cmd, a.t)
	if err != nil {
		return manifestDiff{}, err
	}
	return a.file.Diff(layout, tags, a.Prune)
}

func (a *applying) planLayout(cmd *cobra.Command) error {
	answer, err := askConsole(cmd.Context(), a.t, &marchv1.PlanMigrationRequest{Target: a.file.Layout, Atomic: a.Atomic,
		Force: a.Force}, marchv1.ConsoleServiceClient.PlanMigration)
	if err != nil {
		return err
	}
	a.plan = answer.GetPlan()
	counted, err := planCost(cmd.Context(), a.c, a.t, a.plan)
	if err == nil && counted.GetRefused() != "" && !a.Force {
		err = refusedf("%s", counted.GetRefused())
	}
	if err == nil {
		a.plan.Cost, a.count = counted.GetCost(), counted.GetCount()
		a.Plan, err = marshal(a.plan)
	}
	return err
}

func (a *applying) show(out io.Writer) {
	if a.plan != nil {
		_ = aligned(out, func(w *tabwriter.Writer) {
			movesText(w, a.plan)
			planCostText(w, a.plan.GetCost())
			put(w, "\n")
		})
	}
	_, _ = io.WriteString(out, a.Diff.Text())
}

// apply makes the changes that were shown. Its error is Conflict if the cluster changed
// meanwhile.
func (a *applying) apply(cmd *cobra.Command) error {
	unchanged := func(layout bool) error {
		now, err := a.diff(cmd)
		if err == nil && (!now.SameTags(a.Diff) || layout && !reflect.DeepEqual(now.Layout, a.Diff.Layout)) {
			err = allocator.Errorf(allocator.Conflict, "the cluster changed meanwhile: run apply again")
		}
		return err
	}
	if err := unchanged(true); err != nil {
		return err
	}
	if a.plan != nil {
		answer, err := askConsole(cmd.Context(), a.t, &marchv1.ApplyMigrationRequest{Plan: a.plan, Count: a.count,
			Hold: durationpb.New(a.Hold), Force: a.Force}, marchv1.ConsoleServiceClient.ApplyMigration)
		quiet := *a.c
		quiet.stdout = io.Discard // of the migration only its progress is shown
		if err == nil {
			err = watch(cmd.Context(), &quiet, a.t, answer.GetMigration().GetId())
		}
		if err == nil {
			err = cmd.Context().Err()
		}
		if err == nil {
			err = unchanged(false) // it may have taken long
		}
		if err != nil {
			return err
		}
	}
	for _, change := range a.Diff.Tags {
		err := callConsole(cmd.Context(), a.t, func(ctx context.Context, s marchv1.ConsoleServiceClient) (err error) {
			switch change.Action {
			case "create":
				_, err = s.CreateTag(ctx, &marchv1.CreateTagRequest{Tag: change.Message()})
			case "update":
				var answer *marchv1.UpdateTagResponse
				answer, err = s.UpdateTag(ctx, &marchv1.UpdateTagRequest{Tag: change.Message(), Confirm: true,
					IfRevision: change.revision})
				a.c.sayNotes(answer)
			case "delete":
				_, err = s.DeleteTag(ctx, &marchv1.DeleteTagRequest{Name: change.Tag, IfRevision: change.revision})
			}
			return err
		})
		if err != nil {
			return fmt.Errorf("tag %s: %w", change.Tag, err)
		}
	}
	return nil
}

// maxManifest bounds a file, in bytes.
const maxManifest = 4 << 20

// manifest is the file of `march apply`: a cluster's layout and tags as they should be.
//
// The file is YAML. Numbers, names and texts are taken as they are written. A layout or a
// tag that the file does not have is left alone; a setting that a tag of the file does not
// have is at its default. So a cluster is the same after the same file, whatever was done
// by hand before.
type manifest struct {
	Layout *marchv1.Layout // nil where the file has none
	Tags   []*marchv1.Tag  // sorted by name, with defaults spelled out

	file *yamlfile.File
}

// parseManifest reads a file. path is its name in messages. The error is Invalid, and names each
// mistake with its line and column.
func parseManifest(path string, content []byte) (*manifest, error) {
	var from struct {
		Layout *layoutState        `yaml:"layout"`
		Tags   map[string]*fileTag `yaml:"tags"`
	}
	m := &manifest{file: yamlfile.Read(path, content, &from)}
	if m.Layout = from.Layout.message(); m.Layout != nil && !m.file.Wrong("layout") {
		m.checkLayout()
	}
	for _, name := range sortedKeys(from.Tags) {
		at := tagsPath + yamlfile.Short(name)
		if _, err := allocator.ParseTag(name); err != nil {
			m.file.Refuse(at, "tags: %w", err)
		} else if full, err := completeTag(from.Tags[name].Tag); err != nil && !m.file.Wrong(at) {
			m.refuse(m.file, name, err)
		} else if err == nil {
			full.Name = name
			m.Tags = append(m.Tags, full)
		}
	}
	if err := m.file.Err(); err != nil {
		return nil, err
	}
	return m, nil
}

func (m *manifest) checkLayout() {
	answer, err := operator.ValidateLayout(m.Layout)
	if err != nil {
		m.file.Refuse("layout", "layout: %w", err)
	}
	for i, text := range answer.GetProblems() {
		at := "layout"
		if i < len(answer.GetDetails()) && len(answer.GetDetails()[i].GetRooms()) > 0 {
			at = "layout.rooms." + answer.GetDetails()[i].GetRooms()[0]
		}
		m.file.Refuse(at, "layout: %s", yamlfile.Short(text))
	}
}

// tagsPath begins the path of a tag in a file.
const tagsPath = "tags."

// refuse notes the error of a tag's settings at the setting that the error begins with.
func (m *manifest) refuse(f *yamlfile.File, tag string, err error) {
	at := tagsPath + tag
	begin, _, _ := strings.Cut(err.Error(), ":")
	for _, field := range []string{begin, "time." + begin, "period." + strings.TrimPrefix(begin, "period_"), "period",
		"time"} {
		if f.Has(at + "." + field) {
			f.Refuse(at+"."+field, "%s%s: %w", tagsPath, tag, err)
			return
		}
	}
	f.Refuse(at, "%s: %w", at, err)
}

// fileTag is a tag of a file, with the settings that the file has.
type fileTag struct{ *marchv1.Tag }

func (t *fileTag) ReadYAML(f *yamlfile.File, at string, node ast.Node) {
	t.Tag = &marchv1.Tag{}
	t.read(f, "", f.Entries(at, node))
}

// read reads settings: those whose keys have a prefix, such as time., below the others.
func (t *fileTag) read(f *yamlfile.File, prefix string, entries []yamlfile.Entry) {
	known := make(map[string]setting.Setting)
	var names []string
	for _, s := range setting.Keys(setting.Any) {
		if name, ok := strings.CutPrefix(s.Path, prefix); ok {
			name, _, _ = strings.Cut(name, ".")
			names = append(names, name)
			known[s.Path] = s
		}
	}
	for _, e := range entries {
		switch s, ok := known[prefix+e.Name]; {
		case ok:
			f.Text(e.At, e.Value, s.Allowed(), func(text string) error { return s.Set(t, text) })
		case !slices.Contains(names, e.Name):
			f.Unknown(e, slices.Compact(names)...)
		default: // a message of its own, also if it is empty
			m := t.ProtoReflect()
			m.Mutable(m.Descriptor().Fields().ByName(protoreflect.Name(e.Name)))
			t.read(f, e.Name+".", f.Entries(e.At, e.Value))
		}
	}
}

// completeTag returns a tag with its defaults spelled out, as a console answers it. Its error
// is Invalid, and is the one with which a console refuses the tag.
func completeTag(t *marchv1.Tag) (*marchv1.Tag, error) {
	settings, err := setting.New(t)
	if err == nil {
		err = settings.Validate()
	}
	if err != nil {
		return nil, err
	}
	full := setting.ToProto(record.Tag{TagSettings: settings})
	full.Created, full.Skip, full.Skips = nil, 0, nil
	return full, nil
}

// manifestDiff is what a cluster must change. Its JSON is that of `march apply -o json`.
type manifestDiff struct {
	Layout *layoutChange `json:"layout"` // nil where it stays
	Tags   []tagChange   `json:"tags"`   // sorted by name
}

type layoutChange struct {
	From *layoutState `json:"from"` // nil where the cluster has none yet
	To   *layoutState `json:"to"`
}

// layoutState is a layout in a file, and in a manifestDiff's JSON.
type layoutState struct {
	Boundary int64                 `json:"boundary,string" yaml:"boundary"`
	Rooms    map[string]rangeState `json:"rooms" yaml:"rooms"`
	Reserved map[string]rangeState `json:"reserved,omitempty" yaml:"reserved"`
}

// rangeState is the range of a room: [Lower, Upper).
type rangeState struct {
	Lower int64 `json:"lower,string" yaml:"lower"`
	Upper int64 `json:"upper,string" yaml:"upper"`
}

type tagChange struct {
	Tag    string        `json:"tag"`
	Action string        `json:"action"` // create, update or delete
	Fields []fieldChange `json:"fields"` // of a deleted tag none

	want     *marchv1.Tag
	revision int64 // of the tag that is compared, for a write that finds it unchanged; 0 for a new one
}

// fieldChange is a change of a setting. From is empty in a new tag.
type fieldChange struct {
	Field string `json:"field"`
	From  string `json:"from"`
	To    string `json:"to"`
}

// Empty reports whether nothing changes.
func (d manifestDiff) Empty() bool { return d.Layout == nil && len(d.Tags) == 0 }

// SameTags reports whether both change the same of the same tags: one that was written in
// between is another one, even if the difference is the same.
func (d manifestDiff) SameTags(other manifestDiff) bool {
	return slices.EqualFunc(d.Tags, other.Tags, func(a, b tagChange) bool {
		return a.Tag == b.Tag && a.Action == b.Action && a.revision == b.revision && slices.Equal(a.Fields, b.Fields)
	})
}

// Diff returns what a cluster with a layout, nil if it has none yet, and with these tags
// must change to be as m asks for. With prune the tags go that m does not have. The error
// is Invalid, and names each setting that cannot be changed.
func (m *manifest) Diff(layout *marchv1.Layout, tags []*marchv1.Tag, prune bool) (manifestDiff, error) {
	f := m.file.Again()
	d := manifestDiff{Tags: []tagChange{}}
	if m.Layout != nil {
		change := layoutChange{From: layoutStateOf(layout), To: layoutStateOf(m.Layout)}
		if len(change.To.Reserved) == 0 && change.From != nil { // a file without them leaves them alone
			change.To.Reserved = change.From.Reserved
		}
		if !reflect.DeepEqual(change.From, change.To) {
			d.Layout = &change
		}
	}
	have := make(map[string]*marchv1.Tag, len(tags))
	for _, t := range tags {
		have[t.GetName()] = t
	}
	for _, want := range m.Tags {
		t, there := have[want.GetName()]
		if !there {
			d.Tags = append(d.Tags, createdTag(want))
		} else if change := m.updated(f, t, want); len(change.Fields) > 0 {
			d.Tags = append(d.Tags, change)
		}
		delete(have, want.GetName())
	}
	if prune {
		for _, name := range sortedKeys(have) {
			d.Tags = append(d.Tags, tagChange{Tag: name, Action: "delete", Fields: []fieldChange{},
				revision: have[name].GetRevision()})
		}
	}
	slices.SortStableFunc(d.Tags, func(a, b tagChange) int { return strings.Compare(a.Tag, b.Tag) })
	return d, f.Err()
}

func layoutStateOf(l *marchv1.Layout) *layoutState {
	if l == nil {
		return nil
	}
	state := func(g *marchv1.Range) rangeState { return rangeState{g.GetLower(), g.GetUpper()} }
	return &layoutState{l.GetBoundary(), mapped(l.GetRooms(), state), mapped(l.GetReserved(), state)}
}

// message returns the layout as a message; nil for none.
func (l *layoutState) message() *marchv1.Layout {
	if l == nil {
		return nil
	}
	message := func(g rangeState) *marchv1.Range { return &marchv1.Range{Lower: g.Lower, Upper: g.Upper} }
	return &marchv1.Layout{Boundary: l.Boundary, Rooms: mapped(l.Rooms, message), Reserved: mapped(l.Reserved, message)}
}

func mapped[A, B any](of map[string]A, to func(A) B) map[string]B {
	out := make(map[string]B, len(of))
	for name, a := range of {
		out[name] = to(a)
	}
	return out
}

// changesOf returns the settings that differ in tags of one kind.
func changesOf(have, want *marchv1.Tag) []setting.Change {
	return setting.Diff(setting.Keys(setting.KindOf(want)), have, want)
}

func createdTag(want *marchv1.Tag) tagChange {
	change := tagChange{Tag: want.GetName(), Action: "create", want: want}
	for _, s := range changesOf(&marchv1.Tag{}, want) {
		change.Fields = append(change.Fields, fieldChange{s.Path, "", s.To})
	}
	return change
}

// updated returns the settings of a tag that change; it refuses those that cannot.
func (m *manifest) updated(f *yamlfile.File, have, want *marchv1.Tag) tagChange {
	change := tagChange{Tag: want.GetName(), Action: "update", want: want, revision: have.GetRevision()}
	if was, is := setting.KindOf(have), setting.KindOf(want); was != is {
		m.refuse(f, want.GetName(), invalidf("time: a tag keeps its kind: this one is a %s tag, and the file has a %s "+
			"tag", was, is))
		return change
	}
	refused := false
	for _, s := range changesOf(have, want) {
		change.Fields = append(change.Fields, fieldChange{s.Path, s.From, s.To})
		if s.Fixed {
			refused = true
			m.refuse(f, want.GetName(), invalidf("%s: %s; allowed: %s, as it cannot be changed",
				s.Path, cmp.Or(s.To, "none"), cmp.Or(s.From, "none")))
		}
	}
	if !refused && len(change.Fields) > 0 {
		if err := changeable(have, want); err != nil {
			m.refuse(f, want.GetName(), err)
		}
	}
	return change
}

// changeable is the check with which a console refuses an update.
func changeable(have, want *marchv1.Tag) error {
	before, err := setting.New(have)
	if err != nil {
		return err
	}
	after, err := setting.New(want)
	if err != nil {
		return err
	}
	return before.Changeable(after)
}

// Message returns the tag of the call that makes the change: with all settings for one that
// is created, and with those that change for an update.
func (c tagChange) Message() *marchv1.Tag {
	if c.Action == "create" {
		return c.want
	}
	t := &marchv1.Tag{Name: c.Tag}
	for _, s := range setting.Settings(setting.KindOf(c.want), false) {
		changes := func(f fieldChange) bool { return f.Field == s.Path }
		// The policies of time-ordered IDs belong together.
		if s.Kind == setting.Timed || slices.ContainsFunc(c.Fields, changes) {
			s.Copy(t, c.want)
		}
	}
	return t
}

// Text returns the changes of tags for a person: a line a tag, and one a setting.
func (d manifestDiff) Text() string {
	var b strings.Builder
	if d.Empty() {
		b.WriteString("nothing to change\n")
	}
	for _, c := range d.Tags {
		put(&b, "%s tag %s\n", c.Action, c.Tag)
		for _, f := range c.Fields {
			if c.Action == "create" {
				put(&b, "  %s: %s\n", f.Field, f.To)
			} else {
				put(&b, "  %s: %s -> %s%s\n", f.Field, cmp.Or(f.From, "none"), cmp.Or(f.To, "none"), c.warning(f))
			}
		}
	}
	return b.String()
}

// warning says what a lower limit does.
func (c tagChange) warning(f fieldChange) string {
	from, _ := strconv.ParseInt(f.From, 10, 64)
	if f.Field == "limit" && c.want.GetLimit() < from {
		return " (rooms that have leased IDs above it stop issuing)"
	}
	return ""
}

// exportManifest writes the file of a cluster with this layout and these tags, without the settings
// that are at their defaults. parseManifest reads it, and then there is nothing to change.
func exportManifest(layout *marchv1.Layout, tags []*marchv1.Tag) ([]byte, error) {
	var file yaml.MapSlice
	if layout != nil {
		parts := yaml.MapSlice{yamlItem("boundary", layout.GetBoundary()),
			yamlItem("rooms", yamlRanges(layout.GetRooms()))}
		if len(layout.GetReserved()) > 0 {
			parts = append(parts, yamlItem("reserved", yamlRanges(layout.GetReserved())))
		}
		file = append(file, yamlItem("layout", parts))
	}
	all := yaml.MapSlice{}
	for _, t := range slices.SortedFunc(slices.Values(tags), func(a, b *marchv1.Tag) int {
		return cmp.Compare(a.GetName(), b.GetName())
	}) {
		settings, err := exportedTag(t)
		if err != nil {
			return nil, err
		}
		all = append(all, yamlItem(t.GetName(), settings))
	}
	return yaml.Marshal(append(file, yamlItem("tags", all)))
}

func yamlRanges(of map[string]*marchv1.Range) (list yaml.MapSlice) {
	for _, name := range operator.ByLower(of) {
		list = append(list, yamlItem(name, yaml.MapSlice{yamlItem("lower", of[name].GetLower()),
			yamlItem("upper", of[name].GetUpper())}))
	}
	return list
}

func yamlItem(name string, value any) yaml.MapItem { return yaml.MapItem{Key: name, Value: value} }

// exportedTag returns the settings of a tag that are not at their defaults.
func exportedTag(t *marchv1.Tag) (yaml.MapSlice, error) {
	plain := &marchv1.Tag{Format: t.Format, KeyCheck: t.KeyCheck, Period: t.GetPeriod()}
	if p := t.GetTime(); p != nil {
		plain.Time = &marchv1.TimeTag{
			TimeBits: p.GetTimeBits(), WorkerBits: p.GetWorkerBits(), SequenceBits: p.GetSequenceBits(),
			Unit: p.GetUnit(), EpochMs: p.EpochMs, Order: p.GetOrder(), Sequence: p.GetSequence(),
		}
	}
	plain, err := completeTag(plain)
	if err != nil {
		return nil, err
	}
	settings := yaml.MapSlice{}
	for _, row := range setting.Keys(setting.KindOf(t)) {
		text := row.Text(t)
		if text == "" || !row.Fixed && row.Path != "time.sequence" && text == row.Text(plain) ||
			row.Path == "start" && text == row.Text(plain) {
			continue
		}
		outer, name, nested := strings.Cut(row.Path, ".")
		if !nested {
			settings = append(settings, yamlItem(outer, yamlValue(row, text)))
			continue
		}
		if n := len(settings); n == 0 || settings[n-1].Key != outer {
			settings = append(settings, yamlItem(outer, yaml.MapSlice{}))
		}
		last := len(settings) - 1
		inner, _ := settings[last].Value.(yaml.MapSlice)
		inner = append(inner, yamlItem(name, yamlValue(row, text)))
		settings[last].Value = inner
	}
	return settings, nil
}

// yamlValue returns a value as YAML is to write it: only texts may need quotes.
func yamlValue(s setting.Setting, text string) any {
	if n, err := strconv.ParseInt(text, 10, 64); err == nil && s.Kind != setting.Any {
		return n
	}
	if s.Type() == "bool" {
		return text == "true"
	}
	return text
}
