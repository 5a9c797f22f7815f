// Package cluster is the cluster that a chaos run hurts: etcd's members, rooms'
// instances and consoles, each a process, and callers, with a proxy.Link in every
// connection between them.
//
// The cluster keeps its processes alive as a service manager does: it starts a process again
// that ended by itself. A fault calls Keep if a process is to stay away.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/format"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/texts"
	"github.com/march-id/march/api/tlsfiles"
	"github.com/march-id/march/cmd/chaos/internal/runlog"
	"github.com/march-id/march/cmd/internal/proxy"
)

// Config describes a cluster.
type Config struct {
	// Dir is the run's directory: data, logs, records.
	Dir string
	// March and Chaos are the programs; Chaos includes etcd.
	March, Chaos string
	// Previous is the build of march with which servers start; March if it is empty.
	Previous string
	// Keys are the keys of March's cluster in etcd.
	Keys record.Keys
	// Rooms have so many instances each.
	Rooms []Room
	// Members and Consoles are their numbers.
	Members, Consoles int
	Tags              []allocator.Tag
	Times             []allocator.Tag // tags of time-ordered IDs
	Others            []allocator.Tag // counters with periods, with texts or of doors
	Texts             map[allocator.Tag]*texts.Text
	Key               format.Key // of opaque texts
	KeyFile           string     // its file
	Policy            string     // of callers' rights, as YAML
	Pinned            string     // the instance that has the first worker of its room; empty for none
	// Rate is how many IDs per second all callers together ask for.
	Rate int
	Seed uint64
	// Events receives events.
	Events *runlog.Events
}

// Room is one room of a Config.
type Room struct {
	Name      allocator.Room
	Instances int
}

// Cluster is a running cluster. Its fields do not change.
type Cluster struct {
	Config
	Members   []*Member
	Instances []*Server
	Consoles  []*Server

	// TLS has the CA, and the certificate of callers.
	TLS *tlsfiles.Files

	loads        []*load
	ports        *ports
	renewing     sync.WaitGroup
	stopRenewing context.CancelFunc
}

// New makes a cluster without starting its processes.
func New(cfg Config) (*Cluster, error) {
	c := &Cluster{Config: cfg, ports: newPorts(), stopRenewing: func() {}}
	if err := c.make(); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

func (c *Cluster) make() error {
	for i := range c.Config.Members {
		m, err := c.newMember(fmt.Sprintf("m%d", i+1))
		if err != nil {
			return err
		}
		c.Members = append(c.Members, m)
	}
	if err := c.linkMembers(); err != nil {
		return err
	}
	for i := range c.Config.Consoles {
		s, err := c.newServer("", fmt.Sprintf("c%d", i))
		if err != nil {
			return err
		}
		c.Consoles = append(c.Consoles, s)
	}
	for _, room := range c.Rooms {
		for i := range room.Instances {
			s, err := c.newServer(room.Name, fmt.Sprintf("%s-%d", room.Name, i))
			if err != nil {
				return err
			}
			c.Instances = append(c.Instances, s)
		}
	}
	if err := c.certify(); err != nil {
		return err
	}
	for _, room := range c.Rooms {
		c.loads = append(c.loads, c.newLoad(room.Name))
	}
	return nil
}

// StartMembers starts etcd and waits until all members answer.
func (c *Cluster) StartMembers(ctx context.Context) error {
	for _, m := range c.Members {
		m.begin()
	}
	for _, m := range c.Members {
		if err := m.Await(ctx); err != nil {
			return err
		}
	}
	return nil
}

// StartConsoles starts all consoles, and does not wait for them.
func (c *Cluster) StartConsoles() { begin(c.Consoles) }

// StartRooms starts all instances, and does not wait for them.
func (c *Cluster) StartRooms() { begin(c.Instances) }

func begin(servers []*Server) {
	for _, s := range servers {
		s.begin()
	}
}

// StopServers ends rooms and consoles cleanly.
func (c *Cluster) StopServers() error {
	var errs []error
	for _, s := range c.Servers() {
		errs = append(errs, s.Stop())
	}
	return errors.Join(errs...)
}

// stopWithin bounds how long a server may take to end.
const stopWithin = 15 * time.Second

// Close ends all processes that still run, at once.
func (c *Cluster) Close() error {
	c.stopRenewing()
	c.renewing.Wait()
	errs := []error{c.StopLoads()}
	for _, s := range c.Servers() {
		errs = append(errs, s.close())
	}
	for _, m := range c.Members {
		errs = append(errs, m.close())
	}
	return errors.Join(errs...)
}

// Servers returns all instances and consoles.
func (c *Cluster) Servers() []*Server { return slices.Concat(c.Instances, c.Consoles) }

// Links returns every link of the cluster.
func (c *Cluster) Links() []*proxy.Link {
	var links []*proxy.Link
	for _, m := range c.Members {
		for _, l := range m.Peers {
			links = append(links, l)
		}
	}
	for _, s := range c.Servers() {
		links = append(links, s.Etcd...)
		if s.Room != "" {
			links = append(links, s.Callers, s.Peers)
		}
	}
	return links
}

// Endpoints are the members' own addresses, without a link in between: for the code that
// watches the run.
func (c *Cluster) Endpoints() []string {
	endpoints := make([]string, len(c.Members))
	for i, m := range c.Members {
		endpoints[i] = m.Client
	}
	return endpoints
}

func (c *Cluster) logs() string { return filepath.Join(c.Dir, "logs") }
