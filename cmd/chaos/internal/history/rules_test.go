package history_test

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/march-id/march/allocator/ledger/store"
)

const prefix = "/march/default/"

func set(key, value string) store.Op {
	return store.Op{Put: &store.Put{Key: prefix + key, Value: []byte(value)}}
}

// value returns a key's value after a replacement in it.
func (r *recorded) value(key, old, replacement string) string {
	r.tb.Helper()
	v, ok := r.store.Value(prefix + key)
	find := regexp.MustCompile(old)
	if !ok || !find.Match(v) {
		r.tb.Fatalf("%s is %s: nothing to replace", key, v)
	}
	return find.ReplaceAllString(string(v), replacement)
}

// lastEra rewrites the next ID and the last era of a mark.
func lastEra(mark string, next, version, first, end int64) string {
	mark = regexp.MustCompile(`"next":"\d+"`).ReplaceAllString(mark, fmt.Sprintf(`"next":"%d"`, next))
	return regexp.MustCompile(`\{"version":"\d+",("epoch":"\w+"),"first":"\d+","end":"\d+"\}\]`).
		ReplaceAllString(mark, fmt.Sprintf(`{"version":"%d",$1,"first":"%d","end":"%d"}]`, version, first, end))
}

// Each case makes a change by hand to a healthy cluster that no ledger makes. It names the rule
// that the change breaks.
func TestRulesFindPlantedFaults(t *testing.T) {
	const lost = `"layout_revision":"(\d+)"`
	type plant func(r *recorded)
	corrupt := func(ops func(r *recorded) []store.Op) plant {
		return func(r *recorded) { r.store.Corrupt(ops(r)...) }
	}
	one := func(key, old, replacement string) plant {
		return corrupt(func(r *recorded) []store.Op { return []store.Op{set(key, r.value(key, old, replacement))} })
	}
	mark := func(next, first, end, version int64, more ...store.Op) plant {
		return corrupt(func(r *recorded) []store.Op {
			return append([]store.Op{set("marks/a/t", lastEra(r.value("marks/a/t", "", ""), next,
				version, first, end))}, more...)
		})
	}
	// first is a mark of room a as the first lease of a tag makes it, up to 10.
	first := func(r *recorded, from int64) string {
		v := r.value("marks/a/t", `"began":"\d+",`, "")
		v = regexp.MustCompile(`"eras":\[.*\{`).ReplaceAllString(v, `"eras":[{`)
		return lastEra(v, 10, 2, from, 10)
	}
	// Room a has [0, 30) mod 100 in version 2 and leased 200-219 in it, 1-20 in version 1.
	for _, test := range []struct {
		name, rule string
		plant      plant
	}{
		{"mark lowered", "mark fell", mark(210, 200, 210, 2)},
		{"mark deleted", "kept key deleted", corrupt(func(*recorded) []store.Op {
			return []store.Op{{Delete: prefix + "marks/a/t"}}
		})},
		{"IDs leased again", "overlap", mark(220, 200, 219, 2)},
		{"leased outside of the range", "range", mark(241, 200, 241, 2)},
		{"leased under an old epoch", "stamp", func(r *recorded) {
			r.store.Corrupt(set("marks/a/t", lastEra(r.value("marks/a/t", `"epoch":"[0-9a-f]+"`, `"epoch":"e0"`),
				225, 2, 200, 225)))
		}},
		{"leased under an old layout", "stamp", func(r *recorded) {
			r.store.Corrupt(set("marks/b/t", strings.NewReplacer(`"next":"170"`, `"next":"175"`, `"end":"170"`,
				`"end":"175"`).Replace(r.value("marks/b/t", "", ""))))
		}},
		{"leased while halted", "lease while halted", func(r *recorded) {
			r.store.Corrupt(set("epoch",
				`{"format":2,"halted":{"by":"x","why":"y","time":"2026-01-01T00:00:00Z","nonce":"n"}}`))
			mark(225, 200, 225, 2)(r)
		}},
		{"leased below the floor", "floor", func(r *recorded) {
			layout := r.value("marks/a/t", "", "")
			revision := regexp.MustCompile(lost).FindStringSubmatch(layout)[1]
			r.store.Corrupt(set("marks/b/t", lastEra(r.value("marks/b/t", lost, `"layout_revision":"`+revision+`"`),
				270, 2, 160, 270)))
		}},
		{"an era lost", "era", func(r *recorded) {
			revision := regexp.MustCompile(lost).FindStringSubmatch(r.value("marks/a/t", "", ""))[1]
			v := r.value("marks/b/t", lost, `"layout_revision":"`+revision+`"`)
			r.store.Corrupt(set("marks/b/t", lastEra(v, 280, 2, 250, 280)))
		}},
		{"an era that begins elsewhere", "era", mark(225, 201, 225, 2)},
		{"next above what was leased", "era", mark(229, 200, 225, 2)},
		{"leased above the limit", "tag", func(r *recorded) {
			r.store.Corrupt(set("tags/t", r.value("tags/t", `"limit":"\d+"`, `"limit":"222"`)))
			mark(225, 200, 225, 2)(r)
		}},
		{"leased below a skip", "tag", func(r *recorded) {
			if _, err := r.admin.SkipTag(bg, "t", nil, 300, false, "test"); err != nil {
				r.tb.Fatal(err)
			}
			mark(225, 200, 225, 2)(r)
		}},
		{"an era from below the tag's start on", "floor", func(r *recorded) {
			r.tag("u")
			r.store.Corrupt(set("marks/a/u", first(r, 0)))
		}},
		{"an era from below a skip on", "floor", func(r *recorded) {
			r.tag("u")
			if _, err := r.admin.SkipTag(bg, "u", nil, 5, false, "test"); err != nil {
				r.tb.Fatal(err)
			}
			r.store.Corrupt(set("marks/a/u", first(r, 4)))
		}},
		{"leased of a tag that is gone", "tag", func(r *recorded) {
			r.store.Corrupt(store.Op{Delete: prefix + "tags/t"})
			mark(225, 200, 225, 2)(r)
		}},
		{"leased without an instance", "registration", func(r *recorded) {
			r.store.Corrupt(store.Op{Delete: prefix + "rooms/a/one"})
			mark(225, 200, 225, 2)(r)
		}},
		{"an ended era rewritten", "era", one("marks/a/t", `"first":"1"`, `"first":"2"`)},
		{"a layout deleted out of turn", "kept key deleted", corrupt(func(*recorded) []store.Op {
			return []store.Op{{Delete: prefix + "layouts/0000000000000000001"}}
		})},
		{"a layout of the history rewritten", "kept key rewritten",
			one("layouts/0000000000000000001", `"actor":"test"`, `"actor":"me"`)},
		{"the identity rewritten", "kept key rewritten", one("identity", `"uuid":".`, `"uuid":"x`)},
		{"a layout without its history", "layout history", one("layout", `"version":"2"`, `"version":"3"`)},
		{"a version left out", "layout version", func(r *recorded) {
			v := r.value("layout", `"version":"2"`, `"version":"4"`)
			r.store.Corrupt(set("layout", v), set("layouts/0000000000000000004", v))
		}},
		{"a room forgotten", "rooms that ever were", func(r *recorded) {
			v := strings.Replace(r.value("layout", `"version":"2"`, `"version":"3"`),
				`"ever":["a","b","c"]`, `"ever":["a","b"]`, 1)
			r.store.Corrupt(set("layout", v), set("layouts/0000000000000000003", v))
		}},
		{"a layout while halted", "layout while halted", func(r *recorded) {
			r.store.Corrupt(set("epoch",
				`{"format":2,"halted":{"by":"x","why":"y","time":"2026-01-01T00:00:00Z","nonce":"n"}}`))
			v := r.value("layout", `"version":"2"`, `"version":"3"`)
			r.store.Corrupt(set("layout", v), set("layouts/0000000000000000003", v))
		}},
		{"an epoch for the second time", "epoch again", func(r *recorded) {
			was := r.value("epoch", "", "")
			r.store.Corrupt(set("epoch",
				`{"format":2,"halted":{"by":"x","why":"y","time":"2026-01-01T00:00:00Z","nonce":"n"}}`))
			r.store.Corrupt(set("epoch", was))
		}},
		{"an epoch after an epoch", "epoch without a halt", one("epoch", `"epoch":".`, `"epoch":"x`)},
		{"an unknown key", "values", corrupt(func(*recorded) []store.Op { return []store.Op{set("surprise", "x")} })},
		{"a value that cannot be read", "values", one("marks/a/t", `"format":2`, `"format":7`)},
		{"two eras that share an ID", "whole", func(r *recorded) {
			r.store.Corrupt(set("marks/b/t", lastEra(r.value("marks/b/t", "", ""), 270, 1, 50, 270)))
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := recording(t, t.TempDir())
			r.init("100 a=0-50 b=50-90 c=90-100")
			r.tag("t")
			a, b := r.join("a", "one", "t"), r.join("b", "one", "t")
			r.lease(a, 20)
			r.lease(b, 60)
			r.change("100 a=0-30 b=50-90")
			r.lease(a, 20)
			if got := rules(r.read()); len(got) > 0 {
				t.Fatalf("a healthy cluster breaks %v", got)
			}
			test.plant(r)
			h := r.read()
			if !slices.Contains(rules(h), test.rule) {
				t.Errorf("broken: %v, want %s among them", h.Problems, test.rule)
			}
		})
	}
}
