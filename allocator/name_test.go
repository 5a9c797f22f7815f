package allocator_test

import (
	"errors"
	"regexp"
	"strings"
	"testing"

	"github.com/march-id/march/allocator"
)

var (
	tagPattern  = regexp.MustCompile(`\A[a-z0-9][a-z0-9._-]{0,62}\z`)
	roomPattern = regexp.MustCompile(`\A[a-z0-9][a-z0-9-]{0,62}\z`)
)

func FuzzParseNames(f *testing.F) {
	for _, s := range []string{"", "a", "order", "-a", ".a", "a.b_c-d", "A", "é", "aé", "a\x00",
		"a\xff", "\xff", "a b", "a/b",
		strings.Repeat("a", 63), strings.Repeat("a", 64), strings.Repeat("é", 40)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		check := func(name string, got string, err error, pattern *regexp.Regexp) {
			if want := pattern.MatchString(s); (err == nil) != want {
				t.Errorf("%s %q: %v, want valid %t", name, s, err, want)
			}
			if err == nil && got != s {
				t.Errorf("%s %q became %q", name, s, got)
			}
			if err != nil && (!errors.Is(err, allocator.Invalid) || len(err.Error()) > 1000) {
				t.Errorf("%s: error %q", name, err)
			}
		}
		tag, err := allocator.ParseTag(s)
		check("tag", string(tag), err, tagPattern)
		instance, err := allocator.ParseInstance(s)
		check("instance", string(instance), err, tagPattern)
		room, err := allocator.ParseRoom(s)
		check("room", string(room), err, roomPattern)
	})
}
