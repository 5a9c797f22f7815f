package ledger

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/oklog/ulid/v2"

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
func (k keys) beat() string     { return string(k) + "beat" }
func (k keys) settings() string { return string(k) + "settings" }

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

// heartbeats is the prefix of one room's heartbeats, or of all rooms'.
func (k keys) heartbeats(room allocator.Room) string {
	return string(k) + "alive/" + strings.TrimPrefix(k.registrations(room), k.registrations(""))
}

func (k keys) alive(room allocator.Room, name allocator.Instance) string {
	return k.heartbeats(room) + string(name)
}

// silences is the prefix of one room's notes of silent instances, or of all
// rooms'.
func (k keys) silences(room allocator.Room) string {
	return string(k) + "silent/" + strings.TrimPrefix(k.registrations(room), k.registrations(""))
}

func (k keys) silent(room allocator.Room, name allocator.Instance) string {
	return k.silences(room) + string(name)
}

func (k keys) audits() string           { return string(k) + "audit/" }
func (k keys) audit(ulid string) string { return k.audits() + ulid }

func (k keys) migrations() string           { return string(k) + "migrations/" }
func (k keys) migration(ulid string) string { return k.migrations() + ulid }

// activeMigration names the one migration that is under way, and driver the
// console that drives it.
func (k keys) activeMigration() string { return string(k) + "migration" }
func (k keys) driver() string          { return string(k) + "driver" }

// keyParts is what a key says: which kind it is, and of what.
type keyParts struct {
	kind     string // the part after the prefix: "layouts", say
	room     allocator.Room
	tag      allocator.Tag
	instance allocator.Instance
	version  int64
	ulid     string
}

// parse is the reverse of the methods above: a key that it accepts is the key
// that they make of its parts. Its error is Internal.
func (k keys) parse(key string) (p keyParts, err error) {
	rest, ok := strings.CutPrefix(key, string(k))
	parts := strings.Split(rest, "/")
	p.kind = parts[0]
	again := ""
	switch n := len(parts); {
	case !ok:
	case n == 1:
		for _, single := range []string{k.identity(), k.epoch(), k.layout(), k.beat(), k.settings(), k.activeMigration(), k.driver()} {
			if key == single {
				again = single
			}
		}
	case n == 2 && p.kind == "layouts":
		p.version, err = strconv.ParseInt(parts[1], 10, 64)
		again = k.layoutAt(p.version)
	case n == 2 && p.kind == "tags":
		p.tag, err = allocator.ParseTag(parts[1])
		again = k.tag(p.tag)
	case n == 2 && p.kind == "audit":
		p.ulid = parts[1]
		_, err = ulid.ParseStrict(p.ulid)
		again = k.audit(p.ulid)
	case n == 2 && p.kind == "migrations":
		p.ulid = parts[1]
		_, err = ulid.ParseStrict(p.ulid)
		again = k.migration(p.ulid)
	case n >= 3:
		if p.room, err = allocator.ParseRoom(parts[1]); err != nil {
			break
		}
		switch {
		case n == 3 && p.kind == "marks":
			p.tag, err = allocator.ParseTag(parts[2])
			again = k.mark(p.room, p.tag)
		case n == 4 && p.kind == "eras":
			var versionErr error
			p.tag, err = allocator.ParseTag(parts[2])
			p.version, versionErr = strconv.ParseInt(parts[3], 10, 64)
			err = errors.Join(err, versionErr)
			again = k.era(p.room, p.tag, p.version)
		case n == 3 && p.kind == "rooms":
			p.instance, err = allocator.ParseInstance(parts[2])
			again = k.registration(p.room, p.instance)
		case n == 3 && p.kind == "alive":
			p.instance, err = allocator.ParseInstance(parts[2])
			again = k.alive(p.room, p.instance)
		case n == 3 && p.kind == "silent":
			p.instance, err = allocator.ParseInstance(parts[2])
			again = k.silent(p.room, p.instance)
		}
	}
	if err != nil || again != key || p.version < 0 {
		return keyParts{}, allocator.Errorf(allocator.Internal, "key %q: not a key of this program", key)
	}
	return p, nil
}

// prefixEnd returns the end of the interval of keys that begin with prefix,
// which ends in a byte below 0xff.
func prefixEnd(prefix string) string {
	last := len(prefix) - 1
	return prefix[:last] + string(prefix[last]+1)
}
