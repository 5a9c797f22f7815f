package record

import (
	"fmt"
	"slices"
	"strings"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/store"
)

// Role is a role for users of etcd, with the rights that a process needs.
type Role struct {
	Name   string
	Rights []store.Right
	// Old are rights that it needs until the formats of generation 2 are turned on, and must not
	// have from then on: with them a room writes other rooms' keys.
	Old []store.Right
	// Foreign are keys that it must not write: of kinds that name a room, those of other rooms.
	Foreign []store.Interval
}

// RoomRole returns the role of the instances of a room. They read all keys of the cluster. Of
// the keys that name a room they write their own room's. With tags they also write tags'
// settings: operators may then change tags at a room, and rooms can create tags.
func (k Keys) RoomRole(room allocator.Room, tags bool) Role {
	return k.role("room-"+string(room), room, func(is kind) bool { return is.byRoom || tags && is.name == Tags })
}

// ConsoleRole returns the role of consoles.
func (k Keys) ConsoleRole() Role {
	return k.role("console", "", func(is kind) bool { return is.byConsole })
}

// OperatorRole returns the role of operators' commands that reach etcd directly, such as
// recover.
func (k Keys) OperatorRole() Role {
	return k.role("operator", "", func(kind) bool { return true })
}

// role returns a role that reads all keys, and writes the keys of some kinds.
func (k Keys) role(name string, room allocator.Room, writes func(kind) bool) Role {
	cluster := strings.Split(string(k), "/")[2]
	r := Role{Name: "march-" + cluster + "-" + name, Rights: []store.Right{{Interval: store.Prefix(string(k))}}}
	for _, is := range kinds {
		if !writes(is) {
			continue
		}
		keys := is.keys(k)
		if is.perRoom() && room != "" {
			all := keys
			keys = store.Prefix(k.In(room, is.name))
			r.Foreign = append(r.Foreign,
				store.Interval{Key: all.Key, End: keys.Key}, store.Interval{Key: keys.End, End: all.End})
		}
		if is.old && room != "" {
			r.Old = append(r.Old, store.Right{Interval: keys, Write: true})
			continue
		}
		r.Rights = append(r.Rights, store.Right{Interval: keys, Write: true})
	}
	return r
}

// perRoom reports whether the keys of a kind begin with a room.
func (is kind) perRoom() bool {
	return len(is.parts) > 0 && is.parts[0].text(KeyParts{Room: "a"}) == "a"
}

// Commands returns the etcdctl commands that make the role, or give it the rights that it lacks, in
// a cluster with the formats of generation 2 or without. With them they take the rights of before
// away. They may run again.
func (r Role) Commands(upgraded bool) []string {
	all := []string{unless("role get "+r.Name, "role add "+r.Name)}
	grants := r.Rights
	if !upgraded {
		grants = slices.Concat(r.Rights, r.Old)
	}
	for _, right := range grants {
		kind := "read"
		if right.Write {
			kind = "write"
		}
		all = append(all, fmt.Sprintf("etcdctl role grant-permission %s %s %s", r.Name, kind, keysOf(right)))
	}
	if upgraded {
		for _, right := range r.Old {
			all = append(all, fmt.Sprintf("! etcdctl role get %s | grep -qF '(prefix %s)' || "+
				"etcdctl role revoke-permission %[1]s --prefix %[2]s", r.Name, right.Key))
		}
	}
	return all
}

// keysOf returns the keys of a right as etcdctl takes them.
func keysOf(right store.Right) string {
	if right.End != "" {
		return "--prefix " + right.Key
	}
	return right.Key
}

// TooMuch returns the rights that a user has, and that let a room write another room's keys, in a
// cluster with the formats of generation 2 or without.
func (r Role) TooMuch(has store.Rights, upgraded bool) []store.Right {
	foreign := slices.Clone(r.Foreign)
	if upgraded {
		for _, right := range r.Old {
			foreign = append(foreign, right.Interval)
		}
	}
	return has.Writes(foreign)
}

// UserCommands returns the etcdctl commands that make a user of the role's name with the role. how
// ends the one that adds it. They may run again, and leave the password of a user as it is.
func (r Role) UserCommands(how string) []string {
	return []string{unless("user get "+r.Name, "user add "+r.Name+" "+how),
		"etcdctl user grant-role " + r.Name + " " + r.Name}
}

// unless returns a line that runs a command of etcdctl if another one fails.
func unless(there, command string) string {
	return "etcdctl " + there + " > /dev/null 2>&1 || etcdctl " + command
}
