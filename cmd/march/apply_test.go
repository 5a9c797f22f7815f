package main

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/testcluster"
)

// An apply writes nothing once the cluster is not the one whose difference was shown.
func TestApplyMeanwhile(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(context.Context, marchv1.ConsoleServiceClient) error{
		"a setting that the file changes": func(ctx context.Context, s marchv1.ConsoleServiceClient) error {
			_, err := s.UpdateTag(ctx, &marchv1.UpdateTagRequest{Tag: &marchv1.Tag{Name: "order",
				Reserve: durationpb.New(20 * time.Minute)}})
			return err
		},
		"what a difference does not show": func(ctx context.Context, s marchv1.ConsoleServiceClient) error {
			_, err := s.PrescaleTag(ctx, &marchv1.PrescaleTagRequest{Name: "order", Step: 5000,
				Duration: durationpb.New(time.Hour)})
			return err
		},
		"a tag that the file creates": func(ctx context.Context, s marchv1.ConsoleServiceClient) error {
			_, err := s.CreateTag(ctx, &marchv1.CreateTagRequest{Tag: &marchv1.Tag{Name: "item"}})
			return err
		},
		"a tag that is pruned": func(ctx context.Context, s marchv1.ConsoleServiceClient) error {
			_, err := s.PrescaleTag(ctx, &marchv1.PrescaleTagRequest{Name: "gone", Step: 5000,
				Duration: durationpb.New(time.Hour)})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := testcluster.New(t)
			c.Init(testcluster.Halves(), "test")
			c.Tag(func(s *record.TagSettings) { s.Reserve = record.DurationOf(30 * time.Minute) }, "test", "order")
			c.Tag(nil, "test", "gone")
			server := c.Console(nil)
			a, cmd := apply(t, strings.TrimPrefix(server.Conn.Target(), "passthrough:///"),
				"tags:\n  order: {}\n  item: {min_step: 10}\n")
			a.Prune = true
			var err error
			if a.Diff, err = a.diff(cmd); err != nil || len(a.Diff.Tags) != 3 {
				t.Fatalf("%+v, %v", a.Diff, err)
			}
			if err := change(t.Context(), server); err != nil {
				t.Fatal(err)
			}
			if err := a.apply(cmd); allocator.KindOf(err) != allocator.Conflict {
				t.Errorf("apply: %v, want Conflict", err)
			}
			order, err := server.GetTag(t.Context(), &marchv1.GetTagRequest{Name: "order"})
			if err != nil || order.GetTag().GetReserve().AsDuration() == 10*time.Minute {
				t.Errorf("order was written: %v, %v", order, err)
			}
			if _, err := server.GetTag(t.Context(), &marchv1.GetTagRequest{Name: "gone"}); err != nil {
				t.Errorf("gone was deleted: %v", err)
			}
		})
	}
}

// Without a moment between the check and the writes, each write checks its own tag.
func TestApplyWritesWhatItCompared(t *testing.T) {
	t.Parallel()
	c := testcluster.New(t)
	c.Init(testcluster.Halves(), "test")
	c.Tag(nil, "test", "order")
	server := c.Console(nil)
	stored, err := server.GetTag(t.Context(), &marchv1.GetTagRequest{Name: "order"})
	if err != nil || stored.GetTag().GetRevision() == 0 {
		t.Fatalf("%v, %v", stored, err)
	}
	at := stored.GetTag().GetRevision()
	limit := &marchv1.UpdateTagRequest{Tag: &marchv1.Tag{Name: "order", MaxStep: proto.Int64(5000)}, IfRevision: at}
	changed, err := server.UpdateTag(t.Context(), limit)
	if err != nil || changed.GetTag().GetRevision() <= at {
		t.Fatalf("%v, %v", changed, err)
	}
	if _, err := server.UpdateTag(t.Context(), limit); status.Code(err) != codes.Aborted ||
		!strings.Contains(err.Error(), "read it again") {
		t.Errorf("update of what was changed: %v", err)
	}
	if _, err := server.DeleteTag(t.Context(), &marchv1.DeleteTagRequest{Name: "order", IfRevision: at}); status.Code(
		err) != codes.Aborted {
		t.Errorf("delete of what was changed: %v", err)
	}
	if _, err := server.DeleteTag(t.Context(), &marchv1.DeleteTagRequest{Name: "order",
		IfRevision: changed.GetTag().GetRevision()}); err != nil {
		t.Errorf("delete of what is there: %v", err)
	}
}

// The layout moves only from the one that was shown.
func TestApplyOtherLayout(t *testing.T) {
	t.Parallel()
	c := testcluster.New(t)
	c.Init(testcluster.Halves(), "test")
	server := c.Console(nil)
	half := testcluster.Halves()
	a, cmd := apply(t, strings.TrimPrefix(server.Conn.Target(), "passthrough:///"),
		"layout:\n  boundary: 2000\n  rooms:\n    a: {lower: 0, upper: 1000}\n    b: {lower: 1000, upper: 2000}\n")
	var err error
	if a.Diff, err = a.diff(cmd); err != nil || a.Diff.Layout == nil {
		t.Fatalf("%+v, %v", a.Diff, err)
	}
	if err := a.planLayout(cmd); err != nil {
		t.Fatal(err)
	}
	half.Ranges["b"] = allocator.Range{Lower: half.Ranges["b"].Lower, Upper: half.Ranges["b"].Upper - 1}
	c.Change(half, "test")
	if err := a.apply(cmd); allocator.KindOf(err) != allocator.Conflict {
		t.Errorf("apply: %v, want Conflict", err)
	}
}

// apply returns an apply of a file.
func apply(t *testing.T, console, file string) (*applying, *cobra.Command) {
	t.Helper()
	parsed, err := parseManifest("cluster.yaml", []byte(file))
	if err != nil {
		t.Fatal(err)
	}
	out := new(bytes.Buffer)
	cmd := &cobra.Command{}
	cmd.SetContext(t.Context())
	return &applying{
		c: &common{output: "text", stdout: out, stderr: out}, file: parsed,
		t: &target{what: "console", address: console, timeout: 10 * time.Second},
	}, cmd
}

const wholeManifest = `# a comment
layout:
  boundary: 100
  rooms:
    a: {lower: 0, upper: 50}
    b:
      lower: 50
      upper: 100
tags:
  order: {}
  "007":
    start: 5
    limit: 9007199254740993
    min_step: 10
    max_step: 20
    reserve: 90s
    max_jump: 5000
    max_skew: 7
    strict_retract: true
  label:
    format: "prefix(ORD-) | radix62(9)"
  "true":
  event:
    time: {preset: cosid}
  trace:
    time:
      time_bits: 41
      worker_bits: 10
      sequence_bits: 12
      epoch_ms: 1700000000000
      order: last
      sequence: carry
      carry_to: 100
      rollback: fail
      max_wait: 1s
`

func manifestIn(t *testing.T, content string) *manifest {
	t.Helper()
	m, err := parseManifest("cluster.yaml", []byte(content))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestManifest(t *testing.T) {
	t.Parallel()
	m := manifestIn(t, wholeManifest)
	var names []string
	byName := make(map[string]*marchv1.Tag)
	for _, tag := range m.Tags {
		names = append(names, tag.GetName())
		byName[tag.GetName()] = tag
	}
	if diff := cmp.Diff([]string{"007", "event", "label", "order", "trace", "true"}, names); diff != "" {
		t.Error(diff)
	}
	if m.Layout.GetBoundary() != 100 || m.Layout.GetRooms()["b"].GetUpper() != 100 {
		t.Errorf("layout %v", m.Layout)
	}
	if tag := byName["007"]; tag.GetLimit() != 9007199254740993 || tag.GetReserve().AsDuration().String() != "1m30s" ||
		!tag.GetStrictRetract() {
		t.Errorf("tag 007: %v", tag)
	}
	if tag := byName["order"]; tag.GetStart() != 1 || tag.GetMinStep() != 1000 {
		t.Errorf("tag order without its defaults: %v", tag)
	}
	if tag := byName["trace"].GetTime(); tag.GetOrder() != marchv1.WorkerOrder_WORKER_ORDER_LAST ||
		tag.GetCarryTo() != 100 || tag.GetUnit().AsDuration().String() != "1ms" {
		t.Errorf("tag trace: %v", tag)
	}
	if bits := byName["event"].GetTime().GetTimeBits(); bits == 0 {
		t.Error("a preset without its bits")
	}
}

// TestManifestMistakes tells each mistake with its place.
func TestManifestMistakes(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ file, want string }{
		{"", "f:1:1: the file is empty; allowed: layout, tags"},
		{"tagz: {}", "f:1:1: there is no field tagz; allowed: layout, tags"},
		{"[1]", "f:1:1: a list; allowed: a mapping"},
		{"a: [", "f:1:4: not YAML: "},
		{"tags: {}\n---\ntags: {}", "f:3:1: a second document; allowed: one"},
		{"tags: 5", `f:1:7: tags: "5"; allowed: a mapping`},
		{"tags:\n  order:\n    stride: 5", "f:3:5: there is no field tags.order.stride; allowed: start, limit, "},
		{"tags:\n  order:\n    start: five",
			`f:3:12: tags.order.start: "five"; allowed: a whole number up to 9223372036854775807`},
		{"tags:\n  order:\n    start: 9223372036854775808",
			`f:3:12: tags.order.start: "9223372036854775808"; allowed: a whole number`},
		{"tags:\n  order:\n    start: [1]", `f:3:12: tags.order.start: a list; allowed: a whole number`},
		{"tags:\n  order:\n    start:", `tags.order.start: no value; allowed: a whole number`},
		{"tags:\n  order:\n    reserve: 10",
			`f:3:14: tags.order.reserve: "10"; allowed: a duration such as 500ms, 5s or 2h30m`},
		{"tags:\n  order:\n    strict_retract: maybe",
			`f:3:21: tags.order.strict_retract: "maybe"; allowed: true or false`},
		{"tags:\n  order:\n    min_step: 5\n    limit: 1",
			"f:4:5: tags.order: limit: 1; allowed: above start (1), up to"},
		{"tags:\n  Order: {}", `f:2:3: tags: tag: "Order" begins with "O"; allowed: `},
		{"tags:\n  order: {}\n  item: {}\n  order: {}", "f:4:3: "},
		{"tags:\n  event:\n    time: {epoch_ms: 5, order: front}",
			`f:3:32: tags.event.time.order: "front"; allowed: middle, last`},
		{"tags:\n  event:\n    time: {bits: 5}", "f:3:12: there is no field tags.event.time.bits; allowed: " +
			"preset, time_bits,"},
		{"tags:\n  event:\n    start: 7\n    time: {preset: cosid}",
			"f:3:5: tags.event: start: a tag of kind time has none"},
		{"tags:\n  event:\n    time: {time_bits: 41, worker_bits: 10, sequence_bits: 12}",
			"f:3:5: tags.event: epoch_ms: none given"},
		{"tags:\n  event:\n    time: {preset: nosuch}", `f:3:20: tags.event.time.preset: "nosuch"; allowed: leaf, `},
		{"tags:\n  event:\n    time: {worker_bits: 4294967306}",
			`f:3:25: tags.event.time.worker_bits: "4294967306"; allowed: a whole number up to 2147483647`},
		{"layout:\n  boundary: 100\n  rooms:\n    a: {lower: 0, upper: 60}\n    b: {lower: 50, upper: 100}",
			"f:4:5: layout: rooms a [0, 60) and b [50, 100) overlap in [50, 60)"},
		{"layout: {boundary: 100}", "f:1:1: layout: "},
		{"layout:\n  boundary: 100\n  rooms:\n    a: {lower: 0, uper: 60}",
			"f:4:19: there is no field layout.rooms.a.uper; allowed: lower, upper"},
		{"tags: &x {}\nlayout: *x", "allowed: a mapping"},
		{"tags:\n  <<: {a: 1}", "a YAML mergekey as a name; allowed: a text"},
		{"[[[[[[[[[[", "f:1:9: more than 8 brackets or lists in each other"},
		{"tags: \n  " + strings.Repeat("- ", 20_000) + "x", "f:2:21: more than 8 brackets or lists in each other"},
		{"tags: \n  " + strings.Repeat("? ", 20_000) + "x", "f:2:21: more than 8 brackets or lists in each other"},
		{strings.Repeat("n", 300) + ": [1, 1]", "f:1:1: more than 8 brackets or lists in each other, or a name "},
	} {
		_, err := parseManifest("f", []byte(tt.file))
		if err == nil || !strings.Contains(err.Error(), tt.want) || allocator.KindOf(err) != allocator.Invalid {
			t.Errorf("%q:\ngot  %v (%v)\nwant %s", tt.file, err, allocator.KindOf(err), tt.want)
		}
	}
	_, err := parseManifest("f", []byte("tags:\n  a: {x: 1}\n  b: {y: 1}"))
	if err == nil || strings.Count(err.Error(), "\nf:3:7: ") != 1 {
		t.Errorf("two mistakes: %v", err)
	}
}

func TestManifestDiff(t *testing.T) {
	t.Parallel()
	now := manifestIn(t, wholeManifest)
	for _, tt := range []struct {
		name, from, to string
		prune          bool
		want           string // tag action field:from>to
		refused        string
	}{
		{"same", "", "", true, "", ""},
		{"defaults come back", "    max_skew: 7\n", "", false, "007 update max_skew:7>0", ""},
		{"kept without prune", "  order: {}\n", "", false, "", ""},
		{"pruned", "  order: {}\n", "", true, "order delete", ""},
		{"created", "  order: {}\n", "  order: {}\n  p: {}\n", true, "p create start:>1 limit:>9223372036854775807 " +
			"min_step:>1000 max_step:>100000000 reserve:>10m0s max_jump:>1000000000000000 max_skew:>0 " +
			"strict_retract:>false", ""},
		{"policies", "sequence: carry\n      carry_to: 100", "sequence: reset", false,
			"trace update time.sequence:carry>reset time.carry_to:100>", ""},
		{"start", "start: 5", "start: 6", false, "",
			"cluster.yaml:12:5: tags.007: start: 6; allowed: 5, as it cannot be changed"},
		{"bits", "worker_bits: 10", "worker_bits: 9", false, "",
			"tags.trace: time.worker_bits: 9; allowed: 10, as it cannot be changed"},
		{"format", `    format: "prefix(ORD-) | radix62(9)"` + "\n", "", false, "",
			"tags.label: format: none; allowed: prefix(ORD-) | radix62(9), as it cannot be changed"},
		{"kind", "  order: {}", "  order: {time: {preset: cosid}}", false, "",
			"tags.order: time: a tag keeps its kind: this one is a counter tag, and the file has a time tag"},
	} {
		m := manifestIn(t, strings.Replace(wholeManifest, tt.from, tt.to, 1))
		d, err := m.Diff(now.Layout, now.Tags, tt.prune)
		if tt.refused != "" {
			if err == nil || !strings.Contains(err.Error(), tt.refused) || allocator.KindOf(err) != allocator.Invalid {
				t.Errorf("%s: got %v, want %s", tt.name, err, tt.refused)
			}
			continue
		}
		if err != nil || d.Layout != nil {
			t.Errorf("%s: %v, layout %v", tt.name, err, d.Layout)
			continue
		}
		if got := changedFields(d); got != tt.want {
			t.Errorf("%s:\ngot  %s\nwant %s", tt.name, got, tt.want)
		}
	}
	d, err := manifestIn(t, strings.Replace(wholeManifest, "upper: 50", "upper: 40", 1)).
		Diff(now.Layout, now.Tags, true)
	if err != nil || d.Layout == nil || d.Layout.From.Rooms["a"].Upper != 50 || d.Layout.To.Rooms["a"].Upper != 40 {
		t.Errorf("layout: %v, %v", d.Layout, err)
	}
}

func changedFields(d manifestDiff) string {
	var parts []string
	for _, c := range d.Tags {
		parts = append(parts, c.Tag+" "+c.Action)
		for _, f := range c.Fields {
			parts = append(parts, f.Field+":"+f.From+">"+f.To)
		}
	}
	return strings.Join(parts, " ")
}

// TestManifestMessage holds that an update carries what changes, and nothing else.
func TestManifestMessage(t *testing.T) {
	t.Parallel()
	now := manifestIn(t, wholeManifest)
	to := strings.Replace(wholeManifest, "limit: 9007199254740993", "limit: 1000", 1)
	to = strings.Replace(to, "rollback: fail", "rollback: wait", 1)
	d, err := manifestIn(t, to).Diff(now.Layout, now.Tags, false)
	if err != nil || len(d.Tags) != 2 {
		t.Fatalf("%v, %v", d, err)
	}
	limit := int64(1000)
	if diff := cmp.Diff(&marchv1.Tag{Name: "007", Limit: &limit}, d.Tags[0].Message(),
		protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
	const text = "update tag 007\n  limit: 9007199254740993 -> 1000 (rooms that have leased IDs above it " +
		"stop issuing)\n" +
		"update tag trace\n  time.rollback: fail -> wait\n"
	if diff := cmp.Diff(text, d.Text()); diff != "" {
		t.Error(diff)
	}
	if p := d.Tags[1].Message().GetTime(); p.GetCarryTo() != 100 ||
		p.GetRollback() != marchv1.RollbackPolicy_ROLLBACK_POLICY_WAIT || p.EpochMs != nil || p.GetTimeBits() != 0 {
		t.Errorf("policies %v", p)
	}
}

// exportAgain exports a manifest, reads that again, and fails if there is anything to change.
func exportAgain(t *testing.T, m *manifest) []byte {
	t.Helper()
	content, err := exportManifest(m.Layout, m.Tags)
	if err != nil {
		t.Fatal(err)
	}
	again, err := parseManifest("exported.yaml", content)
	if err != nil {
		t.Fatalf("%v in\n%s", err, content)
	}
	d, err := again.Diff(m.Layout, m.Tags, true)
	if err != nil || !d.Empty() {
		t.Fatalf("%s, %v of\n%s", changedFields(d), err, content)
	}
	return content
}

func TestManifestExport(t *testing.T) {
	t.Parallel()
	content := exportAgain(t, manifestIn(t, wholeManifest))
	for _, want := range []string{"layout:\n  boundary: 100\n  rooms:\n    a:\n      lower: 0\n", "  order: {}\n",
		`"007":`, "    max_skew: 7\n"} {
		if !strings.Contains(string(content), want) {
			t.Errorf("no %q in\n%s", want, content)
		}
	}
}

// FuzzManifest holds that no file makes the parser fail otherwise than with an error that
// names a place, and that what it reads is exported and read again alike.
func FuzzManifest(f *testing.F) {
	f.Add(wholeManifest)
	for _, seed := range []string{"", "tags:\n  a: {}\n", "layout: {boundary: 1, rooms: {a: {lower: 0, upper: 1}}}",
		"a: [", "? x\n: y", "&a a: *a", "%", "tags: |\n x", "- a\n- b"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, content string) {
		if len(content) > 4096 {
			return
		}
		m, err := parseManifest("f", []byte(content))
		if err != nil {
			if !strings.HasPrefix(err.Error(), "f:") || allocator.KindOf(err) != allocator.Invalid {
				t.Fatalf("%v (%v)", err, allocator.KindOf(err))
			}
			return
		}
		exportAgain(t, m)
	})
}
