package console_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/testcluster"
)

type auditEntry struct {
	Format                int
	Time                  time.Time
	Actor, Action, Object string
	From, To              map[string]any
}

// audit returns the entries of the audit, the oldest first.
func (c *consoleOf) audit() (entries []auditEntry) {
	c.Helper()
	for _, key := range c.Mem.Keys("/march/default/audit/") {
		var e auditEntry
		value, _ := c.Mem.Value(key)
		if err := json.Unmarshal(value, &e); err != nil {
			c.Fatalf("%s: %v", value, err)
		}
		entries = append(entries, e)
	}
	return entries
}

// TestAudit makes every kind of change. Each change leaves one entry. A call that fails
// or changes nothing leaves none.
func TestAudit(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := start(t)
		ctx := metadata.AppendToOutgoingContext(bg, api.ActorHeader, "ann")
		order := func(tag *marchv1.Tag) *marchv1.Tag { tag.Name = "order"; return tag }
		seen := 0
		for _, step := range []struct {
			does   func() error
			action string // empty if the call must leave no entry
			object string
			from   map[string]any // some of it
			to     map[string]any
		}{
			{
				func() error { _, err := c.InitLayout(ctx, &marchv1.InitLayoutRequest{Layout: halves()}); return err },
				"init", "layout", nil, map[string]any{"version": "1", "boundary": "100"},
			},
			{
				func() error { _, err := c.InitLayout(ctx, &marchv1.InitLayoutRequest{Layout: halves()}); return err },
				"", "", nil, nil,
			},
			{
				func() error {
					_, err := c.CreateTag(ctx, &marchv1.CreateTagRequest{Tag: order(
						&marchv1.Tag{MinStep: p(9007199254740993), MaxStep: p(9007199254740993)})})
					return err
				},
				"", "", nil, nil, // refused
			},
			{
				func() error {
					_, err := c.CreateTag(ctx,
						&marchv1.CreateTagRequest{Tag: order(&marchv1.Tag{Limit: p(9007199254740993)})})
					return err
				},
				"create tag", "tags/order", nil, map[string]any{"min_step": "1000", "limit": "9007199254740993"},
			},
			{
				func() error {
					_, err := c.CreateTag(ctx, &marchv1.CreateTagRequest{Tag: order(&marchv1.Tag{})})
					return err
				},
				"", "", nil, nil,
			},
			{
				func() error {
					_, err := c.UpdateTag(ctx, &marchv1.UpdateTagRequest{Tag: order(&marchv1.Tag{MinStep: p(7)})})
					return err
				},
				"update tag", "tags/order", map[string]any{"min_step": "1000"}, map[string]any{"min_step": "7"},
			},
			{
				func() error {
					_, err := c.UpdateTag(ctx, &marchv1.UpdateTagRequest{Tag: order(&marchv1.Tag{MinStep: p(7)})})
					return err
				},
				"", "", nil, nil, // no change
			},
			{
				func() error {
					_, err := c.SkipTag(ctx, &marchv1.SkipTagRequest{Name: "order", To: 500})
					return err
				},
				"update tag", "tags/order", map[string]any{"skips": nil}, nil,
			},
			{
				func() error {
					_, err := c.PrescaleTag(ctx, &marchv1.PrescaleTagRequest{Name: "order", Step: 500,
						Duration: durationpb.New(time.Hour)})
					return err
				},
				"update tag", "tags/order", map[string]any{"prescale": nil}, map[string]any{"prescale": "500"},
			},
			{
				func() error {
					required := &marchv1.Cluster{Journal: marchv1.JournalMode_JOURNAL_MODE_REQUIRED}
					_, err := c.UpdateCluster(ctx, &marchv1.UpdateClusterRequest{Cluster: required})
					return err
				},
				"update settings", "settings", map[string]any{}, map[string]any{"journal": "required"},
			},
			{
				func() error { _, err := c.UpdateCluster(ctx, &marchv1.UpdateClusterRequest{}); return err },
				"", "", nil, nil,
			},
			{
				func() error { _, err := c.DeleteTag(ctx, &marchv1.DeleteTagRequest{Name: "order"}); return err },
				"delete tag", "tags/order", map[string]any{"min_step": "7"}, nil,
			},
			{
				func() error { _, err := c.DeleteTag(ctx, &marchv1.DeleteTagRequest{Name: "order"}); return err },
				"", "", nil, nil,
			},
		} {
			time.Sleep(time.Millisecond) // entries of one millisecond have no order
			before := time.Now().Truncate(time.Millisecond)
			err := step.does()
			entries := c.audit()[seen:]
			seen += len(entries)
			if step.action == "" {
				if len(entries) > 0 {
					t.Errorf("%v, and yet the audit says %+v", err, entries)
				}
				continue
			}
			if err != nil || len(entries) != 1 {
				t.Fatalf("%s: %v, audit %+v", step.action, err, entries)
			}
			e := entries[0]
			if e.Format != 2 || e.Actor != "ann from 127.0.0.1" || e.Action != step.action ||
				e.Object != step.object || e.Time.Before(before) {
				t.Errorf("%s: %+v", step.action, e)
			}
			for _, half := range []struct{ want, got map[string]any }{{step.from, e.From}, {step.to, e.To}} {
				for key, want := range half.want {
					if diff := cmp.Diff(want, half.got[key]); diff != "" {
						t.Errorf("%s: %s (-want +got): %s", step.action, key, diff)
					}
				}
			}
			if (e.From == nil) != (step.action == "init" || step.action == "create tag" ||
				step.action == "update settings") || (e.To == nil) != (step.action == "delete tag") {
				t.Errorf("%s: from %v to %v", step.action, e.From, e.To)
			}
		}
	})
}

// TestActor has clients give their names in various ways.
func TestActor(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := startHalves(t)
		seen := len(c.audit())
		for k, test := range []struct{ said, want string }{
			{"", "unknown from 127.0.0.1"},
			{strings.Repeat("x", 5000), strings.Repeat("x", 128) + "... from 127.0.0.1"},
			{`"},{<script>`, `"},{<script> from 127.0.0.1`},
		} {
			ctx := metadata.AppendToOutgoingContext(bg, api.ActorHeader, test.said)
			if _, err := c.CreateTag(ctx,
				&marchv1.CreateTagRequest{Tag: &marchv1.Tag{Name: "tag-" + string(rune('a'+k))}}); err != nil {
				t.Fatal(err)
			}
			if got := c.audit()[seen+k].Actor; got != test.want {
				t.Errorf("said %.20q: got %q, want %q", test.said, got, test.want)
			}
		}
	})
}

// Entries of builds that do not chain are marked; those of this build are not.
func TestAuditShowsUnchained(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := start(t)
		must(c.InitLayout(bg, &marchv1.InitLayoutRequest{Layout: halves()}))(t)
		c.Mem.Corrupt(store.Op{Put: &store.Put{Key: "/march/default/audit/01ARZ3NDEKTSV4RRFFQ69G5FAV",
			Value: []byte(`{"format":2,"time":"2016-07-30T23:54:10Z","actor":"ann","action":"old","object":"tags/x"}`)}})
		list, err := c.ListAudit(bg, &marchv1.ListAuditRequest{})
		if err != nil || len(list.GetEntries()) < 2 {
			t.Fatalf("%v, %v", list, err)
		}
		for _, e := range list.GetEntries() {
			if e.GetUnchained() != (e.GetAction() == "old") {
				t.Errorf("%v", e)
			}
		}
	})
}
