package cluster

import (
	"cmp"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/cmd/chaos/internal/proc"
	"github.com/march-id/march/cmd/chaos/internal/traffic"
	"github.com/march-id/march/cmd/internal/proxy"
	"github.com/march-id/march/internal/skew"
)

// Server is an instance of a room, or a console.
type Server struct {
	*keeper
	// Room is empty for a console.
	Room allocator.Room
	// ID is the instance's or the console's name.
	ID string
	// GRPC and HTTP are its addresses, and Admin that for operators, without a link in between.
	GRPC, HTTP, Admin string
	// Etcd are its links to the members, in the members' order.
	Etcd []*proxy.Link
	// Callers is the link of its callers; nil for a console.
	Callers *proxy.Link
	// Reached is the address of that link.
	Reached string
	// Peers is the link by which other instances pass calls on to it; nil for a console.
	Peers *proxy.Link
	// Doors are the addresses of a room's doors, by their names, without a link in between.
	Doors map[string]string

	listeners []*proxy.Listener
	etcd      []string // the addresses of its links to the members
	user      []string // the flags of its user in etcd
	more      []string // the flags of its certificate, of its doors and of the key of opaque texts
	serves    []string // the flags of its addresses
	journal   string   // the directory of journals
	clock     string   // the file of its clock: package skew

	mu struct {
		sync.Mutex
		march string
		env   []string
	}
}

// Hold is how long clients may use leased IDs, and Drain how long calls may take at the end.
const (
	Hold  = "5s"
	Drain = "2s"
)

// DiskDir is the folder of a disk that faults may hurt.
func (c *Cluster) DiskDir() string { return filepath.Join(c.Dir, "disk") }

// JournalDir is the folder of all instances' journals.
func (c *Cluster) JournalDir() string { return filepath.Join(c.DiskDir(), "journal") }

func (c *Cluster) newServer(room allocator.Room, id string) (_ *Server, err error) {
	s := &Server{Room: room, ID: id, journal: c.JournalDir(), clock: filepath.Join(c.Dir, "clock-"+id)}
	s.mu.march = cmp.Or(c.Previous, c.March)
	s.user = c.as(c.Keys.ConsoleRole())
	if room != "" {
		s.user = c.as(c.Keys.RoomRole(room, false))
	}
	if s.GRPC, err = c.ports.free(); err != nil {
		return nil, err
	}
	if s.HTTP, err = c.ports.free(); err != nil {
		return nil, err
	}
	if s.Admin, err = c.ports.free(); err != nil {
		return nil, err
	}
	s.serves = []string{"--grpc", s.GRPC, "--http", s.HTTP}
	name := id
	if room != "" {
		name = string(room) + "." + id
	}
	s.more = []string{"--tls-cert", filepath.Join(c.certs(), name+".pem"), "--tls-key",
		filepath.Join(c.certs(), name+"-key.pem"), "--tls-client-ca", c.CA(), "--tls-ca", c.CA()}
	s.keeper = newKeeper(proc.New(c.logs(), name), c.Events, s.command)
	link := func(target string) (*proxy.Link, string, error) {
		l := proxy.New(target)
		listener, err := proxy.Listen(l)
		if err != nil {
			return nil, "", err
		}
		s.listeners = append(s.listeners, listener)
		return l, listener.Address(), nil
	}
	for _, m := range c.Members {
		l, address, err := link(m.Client)
		if err != nil {
			return nil, errors.Join(err, s.close())
		}
		s.Etcd, s.etcd = append(s.Etcd, l), append(s.etcd, address)
	}
	if room != "" {
		s.Doors = make(map[string]string)
		for _, door := range []string{"redis", "leaf", "tinyid", "cosid"} {
			if s.Doors[door], err = c.ports.free(); err != nil {
				return nil, errors.Join(err, s.close())
			}
			s.more = append(s.more, "--"+door, s.Doors[door])
		}
		s.more = append(s.more, "--cosid-machines", traffic.Machines, "--tls-doors=false",
			"--tinyid-tokens", c.tokens(), "--opaque-key", c.Key.Name()+"="+c.KeyFile, "--policy", c.policy())
		if c.Pinned == id {
			s.more = append(s.more, "--worker", "0")
		}
		if s.Callers, s.Reached, err = link(s.GRPC); err != nil {
			return nil, errors.Join(err, s.close())
		}
		var peers string
		if s.Peers, peers, err = link(s.GRPC); err != nil {
			return nil, errors.Join(err, s.close())
		}
		s.serves = []string{"--grpc", s.GRPC, "--advertise", peers, "--admin-grpc", s.Admin, "--admin-http", s.HTTP,
			"--http="}
	}
	return s, nil
}

func (s *Server) command() proc.Command {
	args := []string{"console"}
	if s.Room != "" {
		args = []string{"room", string(s.Room), "--name", s.ID, "--hold", Hold, "--journal", s.journal}
	}
	args = append(args, "--etcd", strings.Join(s.etcd, ","), "--drain", Drain, "--log-format", "json", "--log-level",
		"debug")
	args = slices.Concat(args, s.serves, s.user, s.more)
	s.mu.Lock()
	defer s.mu.Unlock()
	return proc.Command{Path: s.mu.march, Args: args, Env: append(slices.Clone(s.mu.env),
		skew.Variable+"="+s.clock), Piped: true}
}

// SetClock changes its clock, also for later starts.
func (s *Server) SetClock(c skew.Clock) error { return c.Write(s.clock) }

// Journals returns the files of its journal.
func (s *Server) Journals() ([]string, error) {
	return filepath.Glob(filepath.Join(s.journal, "*", string(s.Room), s.ID+".journal"))
}

// Program sets the build of march for the next starts.
func (s *Server) Program(march string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.march = march
}

// Environment sets further environment variables for the next starts.
func (s *Server) Environment(env ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.env = env
}

func (s *Server) close() error {
	errs := []error{s.kill()}
	for _, l := range s.listeners {
		errs = append(errs, l.Close())
	}
	for _, l := range s.Etcd {
		l.Close()
	}
	if s.Callers != nil {
		s.Callers.Close()
	}
	if s.Peers != nil {
		s.Peers.Close()
	}
	return errors.Join(errs...)
}
