package ledger

import (
	"fmt"
	"strings"

	"github.com/march-id/march/allocator"
)

// keys makes and parses the keys of one cluster. It is its prefix,
// /march/<cluster>/.
type keys string

// newKeys checks the cluster's name, which follows a room's rules.
func newKeys(cluster string) (keys, error) {
	if _, err := allocator.ParseRoom(cluster); err != nil {
		return "", allocator.Errorf(allocator.Invalid, "cluster: %q is not a name; allowed: [a-z0-9][a-z0-9-]{0,62}", cluster)
	}
	return keys("/march/" + cluster + "/"), nil
}

func (k keys) identity() string { return string(k) + "identity" }
func (k keys) epoch() string    { return string(k) + "epoch" }
func (k keys) layout() string   { return string(k) + "layout" }

func (k keys) layouts() string { return string(k) + "layouts/" }

// layoutAt pads the version to 19 digits, so that etcd lists versions in order.
func (k keys) layoutAt(version int64) string { return fmt.Sprintf("%s%019d", k.layouts(), version) }

func (k keys) tags() string                 { return string(k) + "tags/" }
func (k keys) tag(tag allocator.Tag) string { return k.tags() + string(tag) }
func (k keys) parseTag(key string) (allocator.Tag, error) {
	return allocator.ParseTag(strings.TrimPrefix(key, k.tags()))
}

func (k keys) mark(room allocator.Room, tag allocator.Tag) string {
	return fmt.Sprintf("%smarks/%s/%s", string(k), room, tag)
}

func (k keys) eras(room allocator.Room, tag allocator.Tag) string {
	return fmt.Sprintf("%seras/%s/%s/", string(k), room, tag)
}

func (k keys) era(room allocator.Room, tag allocator.Tag, version int64) string {
	return fmt.Sprintf("%s%019d", k.eras(room, tag), version)
}

// registrations is the prefix of one room's registrations, or of all rooms'.
func (k keys) registrations(room allocator.Room) string {
	if room == "" {
		return string(k) + "rooms/"
	}
	return fmt.Sprintf("%srooms/%s/", string(k), room)
}

func (k keys) registration(room allocator.Room, name allocator.Instance) string {
	return k.registrations(room) + string(name)
}

func (k keys) alive(room allocator.Room, name allocator.Instance) string {
	return fmt.Sprintf("%salive/%s/%s", string(k), room, name)
}

func (k keys) parseRegistration(key string) (allocator.Room, allocator.Instance, error) {
	room, name, ok := strings.Cut(strings.TrimPrefix(key, k.registrations("")), "/")
	if !ok {
		return "", "", allocator.Errorf(allocator.Internal, "key %q: not a registration", key)
	}
	r, err := allocator.ParseRoom(room)
	if err != nil {
		return "", "", err
	}
	n, err := allocator.ParseInstance(name)
	return r, n, err
}

func (k keys) audit(ulid string) string { return string(k) + "audit/" + ulid }

// prefixEnd returns the end of the interval of keys that begin with prefix,
// which ends in a byte below 0xff.
func prefixEnd(prefix string) string {
	last := len(prefix) - 1
	return prefix[:last] + string(prefix[last]+1)
}
