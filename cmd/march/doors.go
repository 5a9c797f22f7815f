package main

import (
	"net"

	"github.com/hashicorp/go-hclog"
	"github.com/spf13/pflag"

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
	snowflake string
	machines  string
	tls       bool
}

// Add adds all of them, as a room has them.
func (f *doorFlags) Add(flags *pflag.FlagSet) {
	for k, kind := range doorKinds {
		flags.StringVar(&f.addresses[k], kind.Flag, "",
			"where to answer clients of "+kind.System+", HOST:PORT; empty for nowhere")
	}
	flags.BoolVar(&f.tls, "tls-doors", true, "with --tls-cert: answer clients of other systems over TLS, too")
	f.AddSnowflake(flags)
	f.AddMachines(flags)
	flags.StringVar(&f.tokens, "tinyid-tokens", "", "file of TinyId's tokens: lines of a token and a bizType, "+
		"* for all; read again each minute")
}

// AddSnowflake adds the flag of the tag that Leaf's Snowflake answers from.
func (f *doorFlags) AddSnowflake(flags *pflag.FlagSet) {
	flags.StringVar(&f.snowflake, "leaf-snowflake", "", "the tag of time-ordered IDs for Leaf's /api/snowflake/get")
}

// AddMachines adds the flag of the range that machine IDs of CosId come from.
func (f *doorFlags) AddMachines(flags *pflag.FlagSet) {
	flags.StringVar(&f.machines, "cosid-machines", "",
		"the layout's reserved range for machine IDs of CosId's clients; empty for none")
}

// MachinesRange returns that range; empty for none. Its error is Invalid.
func (f *doorFlags) MachinesRange() (allocator.Room, error) {
	if f.machines == "" {
		return "", nil
	}
	name, err := allocator.ParseRoom(f.machines)
	if err != nil {
		return "", allocator.Errorf(allocator.Invalid, "cosid-machines: %w", err)
	}
	return name, nil
}

// SnowflakeTag returns that tag; empty for none. Its error is Invalid.
func (f *doorFlags) SnowflakeTag() (allocator.Tag, error) {
	if f.snowflake == "" {
		return "", nil
	}
	tag, err := allocator.ParseTag(f.snowflake)
	if err != nil {
		return "", allocator.Errorf(allocator.Invalid, "leaf-snowflake: %w", err)
	}
	return tag, nil
}

// Settings checks the flags, and reads what they name. policy says that the room has one. Its errors are Invalid.
func (f *doorFlags) Settings(doors *room.Doors, policy bool, log hclog.Logger) (err error) {
	if doors.LeafSnowflake, err = f.SnowflakeTag(); err != nil {
		return err
	}
	if doors.CosIDMachines, err = f.MachinesRange(); err != nil {
		return err
	}
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
