package history_test

import (
	"fmt"
	"regexp"
	"slices"
	"testing"

	"github.com/march-id/march/allocator/ledger/store"
)

// Each case writes a window of worker 7, after one of [1000, 2000) of the same worker.
func TestRulesFindPlantedWindows(t *testing.T) {
	key := func(room string) string { return "windows/" + room + "/10/0000000000000000007" }
	const halt = `{"format":2,"halted":{"by":"x","why":"y","time":"2026-01-01T00:00:00Z","nonce":"n"}}`
	for _, test := range []struct {
		name, rule  string
		room, inc   string
		from, until int64
		stamp       string // of another epoch; empty for the one in force
		before      func(r *recorded)
	}{
		{name: "renewed", room: "a", inc: "x", from: 1000, until: 3000},
		{name: "given back", room: "a", inc: "x", from: 1000, until: 1500},
		{name: "taken by another process", room: "a", inc: "y", from: 2000, until: 3000},
		{name: "taken too early", rule: "window overlap", room: "a", inc: "y", from: 1999, until: 3000},
		{name: "taken too early by another room", rule: "window overlap", room: "b", inc: "y", from: 1999, until: 3000},
		{name: "of another epoch", rule: "window stamp", room: "a", inc: "x", from: 1000, until: 3000, stamp: "e0"},
		{name: "of another room's slice", rule: "window slice", room: "b", inc: "y", from: 2000, until: 3000},
		{name: "of a room without an instance", rule: "registration", room: "c", inc: "y", from: 2000, until: 3000},
		{name: "before not_before", rule: "window not before", room: "a", inc: "y", from: 2000, until: 3000,
			before: func(r *recorded) { // a window of the epoch in force would free its number
				r.store.Corrupt(set(key("a"), r.value(key("a"), `"epoch":"\w+"`, `"epoch":"e0"`)),
					set("epoch", r.value("epoch", `"format":2(.*)\}`, `"format":3$1,"not_before":"2500"}`)))
			}},
		{name: "raised while halted", room: "a", inc: "y", from: 500, until: 2001, before: func(r *recorded) {
			r.store.Corrupt(set("epoch", halt))
		}},
		{name: "lowered while halted", rule: "window while halted", room: "a", inc: "x", from: 1000, until: 1500,
			before: func(r *recorded) {
				r.store.Corrupt(set("epoch", halt))
			}},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := recording(t, t.TempDir())
			r.init("100 a=0-50 b=50-100")
			r.tag("t")
			a, _ := r.join("a", "one", "t"), r.join("b", "one", "t")
			r.lease(a, 20)
			stamp := regexp.MustCompile(`"stamp":\{[^}]*\}`).FindString(r.value("marks/a/t", "", ""))
			window := func(room, inc string, from, until int64, stamp string) store.Op {
				return set(key(room),
					fmt.Sprintf(
						`{"format":2,"room":%q,"instance":"one","incarnation":%q,"from":"%d","until":"%d",%s,"clock":"1000"}`, room, inc, from, until, stamp))
			}
			r.store.Corrupt(window("a", "x", 1000, 2000, stamp))
			if got := rules(r.read()); len(got) > 0 {
				t.Fatalf("a healthy cluster breaks %v", got)
			}
			if test.before != nil {
				test.before(r)
			}
			if test.stamp != "" {
				stamp = regexp.MustCompile(`"epoch":"\w+"`).ReplaceAllString(stamp, `"epoch":"`+test.stamp+`"`)
			}
			r.store.Corrupt(window(test.room, test.inc, test.from, test.until, stamp))
			got := rules(r.read())
			windows := slices.ContainsFunc(got, func(rule string) bool {
				return rule == "registration" || len(rule) > 5 && rule[:6] == "window"
			})
			if test.rule != "" && !slices.Contains(got, test.rule) || test.rule == "" && windows {
				t.Errorf("broken: %v, want %q", got, test.rule)
			}
		})
	}
}
