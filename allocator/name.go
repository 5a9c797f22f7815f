package allocator

import "strings"

// Tag names one sequence of IDs: [a-z0-9][a-z0-9._-]{0,62}. The zero value is
// not a valid tag. Values come from ParseTag.
type Tag string

// Room names a datacenter or zone: [a-z0-9][a-z0-9-]{0,62}. The zero value is
// not a valid room. Values come from ParseRoom.
type Room string

// Instance names one process of a room, stable over its restarts (a host or
// pod name): [a-z0-9][a-z0-9._-]{0,62}. Values come from ParseInstance.
type Instance string

// MaxNameLength is the longest tag, room or instance name, in bytes.
const MaxNameLength = 63

const (
	letters  = "abcdefghijklmnopqrstuvwxyz0123456789"
	tagChars = letters + "._-"
)

// ParseTag checks s. Its error is Invalid.
func ParseTag(s string) (Tag, error) {
	return Tag(s), parseName("tag", s, tagChars, "[a-z0-9][a-z0-9._-]{0,62}")
}

// ParseRoom checks s. Its error is Invalid.
func ParseRoom(s string) (Room, error) {
	return Room(s), parseName("room", s, letters+"-", "[a-z0-9][a-z0-9-]{0,62}")
}

// ParseInstance checks s. Its error is Invalid.
func ParseInstance(s string) (Instance, error) {
	return Instance(s), parseName("instance", s, tagChars, "[a-z0-9][a-z0-9._-]{0,62}")
}

func parseName(field, s, allowed, pattern string) error {
	switch {
	case s == "":
		return Errorf(Invalid, "%s: empty; allowed: %s", field, pattern)
	case len(s) > MaxNameLength:
		return Errorf(Invalid, "%s: %q... has %d bytes; allowed: %s", field, s[:16], len(s), pattern)
	case !strings.Contains(letters, s[:1]):
		return Errorf(Invalid, "%s: %q begins with %q; allowed: %s", field, s, s[:1], pattern)
	}
	for _, c := range s {
		if !strings.ContainsRune(allowed, c) {
			return Errorf(Invalid, "%s: %q contains %q; allowed: %s", field, s, c, pattern)
		}
	}
	return nil
}
