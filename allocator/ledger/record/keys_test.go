package record_test

import (
	"testing"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
)

// A key that is made of good names parses to the same names, and different names have different
// keys.
func FuzzKeys(f *testing.F) {
	f.Add("a", "t", "i", int64(1), "b", "t.u", "i-2", int64(2))
	f.Add("a-b", "c", "d", int64(1<<62), "a", "b-c", "d", int64(1<<62+1))
	f.Add("rooms", "marks", "alive", int64(0), "0", "0", "0", int64(10))
	const ulid = "01ARZ3NDEKTSV4RRFFQ69G5FAV"
	type names struct {
		room    allocator.Room
		tag     allocator.Tag
		name    allocator.Instance
		version int64
	}
	f.Fuzz(func(t *testing.T, room1, tag1, name1 string, version1 int64, room2, tag2, name2 string, version2 int64) {
		parse := func(room, tag, name string, version int64) (names, bool) {
			r, err1 := allocator.ParseRoom(room)
			g, err2 := allocator.ParseTag(tag)
			n, err3 := allocator.ParseInstance(name)
			return names{r, g, n, version}, err1 == nil && err2 == nil && err3 == nil && version >= 0
		}
		a, ok1 := parse(room1, tag1, name1, version1)
		b, ok2 := parse(room2, tag2, name2, version2)
		if !ok1 || !ok2 {
			return
		}
		made := record.MakeKeys(a.room, a.tag, a.name, a.version, ulid)
		seen := map[string]record.Kind{}
		for want, key := range made {
			if other, twice := seen[key]; twice {
				t.Errorf("%s and %s share key %s", other, want, key)
			}
			seen[key] = want
			parsed, err := record.ParseKey(key)
			if err != nil {
				t.Errorf("%v", err)
				continue
			}
			kind, room, tag, name, version, audit := record.Parts(parsed)
			if kind != want || room != "" && room != a.room || tag != "" && tag != a.tag ||
				name != "" && name != a.name ||
				version != 0 && version != a.version || audit != "" && audit != ulid {
				t.Errorf("%s parses as %+v", key, parsed)
			}
		}
		uses := map[record.Kind]func(names) names{
			"layouts": func(n names) names { return names{version: n.version} },
			"tags":    func(n names) names { return names{tag: n.tag} },
			"marks":   func(n names) names { return names{room: n.room, tag: n.tag} },
			"rooms":   func(n names) names { return names{room: n.room, name: n.name} },
			"alive":   func(n names) names { return names{room: n.room, name: n.name} },
		}
		for kind, key := range record.MakeKeys(b.room, b.tag, b.name, b.version, ulid) {
			if other, shared := seen[key]; shared && other != kind {
				t.Errorf("a key of %s is one of %s: %s", kind, other, key)
			}
			if use := uses[kind]; use != nil && (key == made[kind]) != (use(a) == use(b)) {
				t.Errorf("%s: %+v and %+v have keys %s and %s", kind, use(a), use(b), made[kind], key)
			}
		}
	})
}

// A key that parses equals the key that is made of its parts.
func FuzzParseKey(f *testing.F) {
	for _, key := range record.MakeKeys("a", "t", "i", 7, "01ARZ3NDEKTSV4RRFFQ69G5FAV") {
		f.Add(key)
	}
	for _, key := range []string{"", "/march/default", "/march/default/", "/march/other/layout",
		"/march/default/marks/a", "/march/default/layouts/1", "/march/default/layouts/+000000000000000001",
		"/march/default/rooms/a/../b"} {
		f.Add(key)
	}
	f.Fuzz(func(t *testing.T, key string) {
		parsed, err := record.ParseKey(key)
		if err != nil {
			return
		}
		kind, room, tag, name, version, ulid := record.Parts(parsed)
		if made := record.MakeKeys(room, tag, name, version, ulid)[kind]; made != key {
			t.Errorf("%q parses as %+v, of which %q is made", key, parsed, made)
		}
	})
}

// A damaged key names the tag that it stops, if it is the tag's own or a mark of it.
func TestTagOfADamagedKey(t *testing.T) {
	for key, want := range map[string]allocator.Tag{
		"/march/default/tags/order":          "order",
		"/march/c2/tags/order":               "order",
		"/march/default/marks/a/order":       "order",
		"/march/tags/marks/marks/tags":       "tags",
		"/march/default/marks/order":         "",
		"/march/default/tags/a/order":        "",
		"/march/default/rooms/tags/order":    "",
		"/march/default/alive/marks/order":   "",
		"/march/default/layout":              "",
		"/march/":                            "",
		"/other/default/tags/order":          "",
		"default/tags/order":                 "",
		"/march/default/tags/":               "",
		"/march/default/marks/a/order/order": "",
	} {
		if got := (&record.KeyError{Key: key}).Tag(); got != want {
			t.Errorf("%s: got %q; want %q", key, got, want)
		}
	}
}
