package main

import (
	"net"
	"slices"

	"github.com/hashicorp/go-hclog"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/room"
	"github.com/march-id/march/room/tinyid"
)

// doorKind is a door for other systems' clients.
type doorKind struct {
	Flag, System string
	Listener     func(*room.Doors) *net.Listener
}

// doorKinds are in the order of march dev's ports.
var doorKinds = [...]doorKind{
	{"redis", "Redis", func(d *room.Doors) *net.Listener { return &d.Redis }},
	{"leaf", "Leaf", func(d *room.Doors) *net.Listener { return &d.Leaf }},
	{"tinyid", "TinyId", func(d *room.Doors) *net.Listener { return &d.TinyID }},
	{"cosid", "CosId", func(d *room.Doors) *net.Listener { return &d.CosID }},
}

// doorFlags say where a room answers other systems' clients.
type doorFlags struct {
	addresses [len(doorKinds)]string
	tokens    string
	snowflake allocator.Tag  // that Leaf's Snowflake answers from; empty for none
	machines  allocator.Room // the reserved range of CosId's machine IDs; empty for none
	tls       bool
}

// options returns the settings, as a room has them.
func (f *doorFlags) options() (list []option) {
	for k, kind := range doorKinds {
		list = append(list, option{kind.Flag, &f.addresses[k],
			"where to answer clients of " + kind.System + ", HOST:PORT; empty for nowhere"})
	}
	return slices.Concat(list, f.tagOptions(), []option{
		{"tls-doors", usually(&f.tls, true), "with --tls-cert: answer clients of other systems over TLS, too"},
		{"tinyid-tokens", &f.tokens, "file of TinyId's tokens: lines of a token and a bizType, * for all; read again " +
			"each minute"},
	})
}

// tagOptions returns the settings that march dev has, too.
func (f *doorFlags) tagOptions() []option {
	return []option{
		{"leaf-snowflake", parsed[allocator.Tag]{&f.snowflake, allocator.ParseTag}, "the tag of time-ordered IDs for " +
			"Leaf's /api/snowflake/get"},
		{"cosid-machines", parsed[allocator.Room]{&f.machines, allocator.ParseRoom}, "the layout's reserved range " +
			"for machine IDs of CosId's clients; empty for none"},
	}
}

// Settings checks the flags, and reads what they name. policy says that the room has one. Its errors are Invalid.
func (f *doorFlags) Settings(doors *room.Doors, policy bool, log hclog.Logger) (err error) {
	doors.LeafSnowflake, doors.CosIDMachines = f.snowflake, f.machines
	if f.tokens != "" {
		doors.TinyIDTokens, err = tinyid.OpenTokens(f.tokens, log)
		return err
	}
	for k, kind := range doorKinds {
		if kind.Flag == "tinyid" && f.addresses[k] != "" && !policy {
			return allocator.Errorf(allocator.Invalid,
				"tinyid: there are no tokens; allowed: with --tinyid-tokens FILE, or with --policy and --tokens")
		}
	}
	return nil
}

// At returns where the doors are to listen, and notes in doors whether they have TLS.
func (f *doorFlags) At(doors *room.Doors) (list []listenAddress) {
	doors.Plain = !f.tls
	for k, kind := range doorKinds {
		list = append(list, listenAddress{Flag: kind.Flag, At: f.addresses[k], Plain: doors.Plain})
	}
	return list
}

// Open opens the doors. The caller closes them where no server did.
func (f *doorFlags) Open(doors *room.Doors) (err error) {
	for k, kind := range doorKinds {
		if f.addresses[k] == "" {
			continue
		}
		if *kind.Listener(doors), err = listen("room "+kind.System, f.addresses[k], kind.Flag); err != nil {
			return err
		}
	}
	return nil
}
