package ledger

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/march-id/march/allocator"
)

// strays checks that there are no keys but those of a cluster, and no marks and
// eras of rooms that never were. It looks between what is known, where nothing
// should be; it is last, so that it knows the rooms that were added meanwhile.
func (v *verification) strays(ctx context.Context) error {
	k := v.l.keys
	known := []string{k.identity(), k.epoch(), k.layout(), k.beat(), k.settings(), k.activeMigration(), k.driver(), k.layouts(), k.tags(),
		string(k) + "marks/", string(k) + "eras/", k.registrations(""), k.heartbeats(""), k.silences(""), k.audits(), k.migrations()}
	if err := v.between(ctx, string(k), known, func(_, first string) {
		if _, err := k.parse(first); err != nil { // a kind that is not listed above, but a key of this program, is fine
			v.add("%v", err)
		}
	}); err != nil {
		return err
	}
	for _, kind := range []string{"marks", "eras"} {
		found := make(map[string]string)
		known := make([]string, 0, len(v.checker.ever))
		for _, room := range v.checker.ever {
			known = append(known, string(k)+kind+"/"+string(room)+"/")
		}
		if err := v.between(ctx, string(k)+kind+"/", known, func(name, first string) {
			if _, err := k.parse(first); err != nil {
				v.add("%v", err)
			} else {
				found[name] = first
			}
		}); err != nil {
			return err
		}
		if err := v.history(ctx); err != nil { // after: it may be a new room
			return err
		}
		for _, name := range slices.Sorted(maps.Keys(found)) {
			if _, was := slices.BinarySearch(v.checker.ever, allocator.Room(name)); was {
				continue
			}
			first, err := v.strange(ctx, kind, allocator.Room(name), found[name])
			if err != nil {
				return err
			}
			if first != "" {
				v.add("there are %s of room %s, which never was, the first is %s", kind, name, first)
			}
		}
	}
	return nil
}

// strange returns the first key, from one on, of a room that never was which no
// instance can have written that a recover left out; empty where there is none.
func (v *verification) strange(ctx context.Context, kind string, room allocator.Room, from string) (string, error) {
	if kind != "marks" || len(v.checker.lost) == 0 {
		return from, nil
	}
	for {
		answer, err := v.l.gets(ctx, page(from, prefixEnd(v.l.keys.marksOf(room)), v.page))
		if err != nil {
			return "", err
		}
		for _, kv := range answer.Got[0] {
			_, err := v.l.keys.parse(kv.Key)
			if mark, bad := decodeMark(kv); err != nil || bad != nil || !v.checker.behind(mark) {
				return kv.Key, nil //nolint:nilerr // one that cannot be read is strange
			}
			from = kv.Key + "\x00"
		}
		if int64(len(answer.Got[0])) < v.page {
			return "", nil
		}
	}
}

// between calls use with each name that follows prefix, up to the next slash,
// and the first key of it, but for known ones: keys, or prefixes that end in a
// slash. It asks only for what lies between those: etcd counts all keys of an
// interval, whatever the limit is.
func (v *verification) between(ctx context.Context, prefix string, known []string, use func(name, first string)) error {
	from := prefix
	slices.Sort(known)
	for _, next := range append(known, prefixEnd(prefix)) {
		for n := 0; from < next && n < MaxProblems; n++ {
			answer, err := v.l.gets(ctx, Op{Get: &Get{Interval: Interval{Key: from, End: next}, Limit: 1, KeysOnly: true}})
			if err != nil {
				return err
			}
			kv, ok := answer.one(0)
			if !ok {
				break
			}
			name, _, nested := strings.Cut(kv.Key[len(prefix):], "/")
			use(name, kv.Key)
			if from = kv.Key + "\x00"; nested {
				from = prefix + name + "0" // the byte after '/'
			}
		}
		if from = next + "\x00"; strings.HasSuffix(next, "/") {
			from = prefixEnd(next)
		}
	}
	return nil
}
