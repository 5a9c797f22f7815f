package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"github.com/march-id/march/cmd/chaos/internal/proc"
	"github.com/march-id/march/cmd/internal/proxy"
)

// Member is one of etcd's members. Members dial each other by addresses that do not exist (RFC
// 5737), each through a SOCKS proxy of its own. So each link from one member to another can be
// hurt alone, and in one direction only.
type Member struct {
	*keeper
	// Client is its address for clients, HOST:PORT.
	Client string
	// Peers are the links over which it dials the others, by their names.
	Peers map[string]*proxy.Link
	// Dir has its data.
	Dir string

	listen  string         // its address for peers,
	address netip.AddrPort // and the address by which they dial it
	socks   *proxy.Listener
	chaos   string

	mu struct {
		sync.Mutex
		initial, state, token string
		more                  []string // further flags
		client                *clientv3.Client
	}
}

// Token is the part of etcd's cluster ID that does not depend on its members.
const Token = "march-chaos"

// Quota bounds a member's data, in bytes.
const Quota = 48 << 20

func (c *Cluster) newMember(name string) (*Member, error) {
	m := &Member{Dir: filepath.Join(c.Dir, "etcd", name), Peers: make(map[string]*proxy.Link), chaos: c.Chaos}
	var err error
	if m.Client, err = c.ports.free(); err != nil {
		return nil, err
	}
	if m.listen, err = c.ports.free(); err != nil {
		return nil, err
	}
	listen, err := netip.ParseAddrPort(m.listen)
	if err != nil {
		return nil, err
	}
	m.address = netip.AddrPortFrom(netip.AddrFrom4([4]byte{203, 0, 113, byte(len(c.Members) + 1)}), listen.Port())
	m.keeper = newKeeper(proc.New(c.logs(), name), c.Events, m.command)
	m.mu.state, m.mu.token = "new", Token
	return m, nil
}

// linkMembers makes the links between members, and gives each member its links.
func (c *Cluster) linkMembers() (err error) {
	var initial []string
	for _, m := range c.Members {
		initial = append(initial, m.Name+"="+m.PeerURL())
		routes := make(map[netip.AddrPort]*proxy.Link)
		for _, other := range c.Members {
			if other != m {
				link := proxy.New(other.listen)
				routes[other.address], m.Peers[other.Name] = link, link
			}
		}
		if m.socks, err = proxy.Socks(func(address netip.AddrPort) *proxy.Link { return routes[address] }); err != nil {
			return err
		}
	}
	for _, m := range c.Members {
		m.mu.initial = strings.Join(initial, ",")
	}
	return nil
}

// PeerURL is the address by which other members know it.
func (m *Member) PeerURL() string { return "http://" + m.address.String() }

func (m *Member) command() proc.Command {
	m.mu.Lock()
	defer m.mu.Unlock()
	args := append([]string{"etcd",
		"--name", m.Name, "--data-dir", m.Dir,
		"--listen-client-urls", "http://" + m.Client, "--advertise-client-urls", "http://" + m.Client,
		"--listen-peer-urls", "http://" + m.listen, "--initial-advertise-peer-urls", m.PeerURL(),
		"--initial-cluster", m.mu.initial, "--initial-cluster-state", m.mu.state, "--initial-cluster-token", m.mu.token,
		// Short, so that a run has many elections; long enough for two cores.
		"--heartbeat-interval", "100", "--election-timeout", "1000",
		"--snapshot-count", "2000", "--quota-backend-bytes", fmt.Sprint(Quota), "--strict-reconfig-check=false",
		"--logger", "zap", "--log-level", "info", "--bcrypt-cost", "4", // of passwords that are no secrets
	}, m.mu.more...)
	return proc.Command{Path: m.chaos, Args: args, Env: []string{
		"HTTP_PROXY=socks5://" + m.socks.Address(), "http_proxy=", "NO_PROXY=", "no_proxy=", "ALL_PROXY=", "GOGC=200",
	}}
}

// Begin says how a member without data starts: in which cluster.
func (m *Member) Begin(initial, state, token string, more ...string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.initial, m.mu.state, m.mu.token, m.mu.more = initial, state, token, more
}

// Wipe removes its data. The member must not run.
func (m *Member) Wipe() error {
	if m.Running() {
		return fmt.Errorf("member %s runs", m.Name)
	}
	return os.RemoveAll(m.Dir)
}

// Etcd returns a client of this member alone.
func (m *Member) Etcd() (*clientv3.Client, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mu.client != nil {
		return m.mu.client, nil
	}
	client, err := clientv3.New(clientv3.Config{
		Endpoints: []string{m.Client}, Username: Root, Password: Password,
		DialTimeout: 2 * time.Second, Logger: zap.NewNop(),
		DialOptions: []grpc.DialOption{grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2,
				MaxDelay: 200 * time.Millisecond},
			MinConnectTimeout: time.Second,
		})},
	})
	m.mu.client = client
	return client, err
}

// Status asks the member for its status.
func (m *Member) Status(ctx context.Context) (*clientv3.StatusResponse, error) {
	client, err := m.Etcd()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	return client.Status(ctx, m.Client)
}

// Healthy reports whether the member answers and knows a leader. A new etcd waits with a token of the
// one before until its own log is as long: so after a failure the member gets a new client.
func (m *Member) Healthy(ctx context.Context) bool {
	client, err := m.Etcd()
	if err != nil {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if _, err = client.Get(ctx, "health"); err == nil { // linearizable: it needs a leader
		return true
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mu.client == client {
		m.mu.client = nil
	}
	_ = client.Close() // it has nothing to say
	return false
}

// Await waits until the member is healthy.
func (m *Member) Await(ctx context.Context) error {
	return Poll(ctx, m.Name+" to answer", func() bool { return m.Healthy(ctx) })
}

// Poll calls done until it returns true or ctx ends.
func Poll(ctx context.Context, what string, done func() bool) error {
	for !done() {
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w", what, context.Cause(ctx))
		case <-time.After(20 * time.Millisecond):
		}
	}
	return nil
}

// Leader returns the leading member, nil if none is known.
func (c *Cluster) Leader(ctx context.Context) *Member {
	for _, m := range c.Members {
		if s, err := m.Status(ctx); err == nil && s.Leader != 0 && s.Leader == s.Header.GetMemberId() {
			return m
		}
	}
	return nil
}

// close ends the member at once and for good.
func (m *Member) close() error {
	errs := []error{m.kill()}
	if m.socks != nil {
		errs = append(errs, m.socks.Close())
	}
	for _, l := range m.Peers {
		l.Close()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mu.client != nil {
		errs = append(errs, m.mu.client.Close())
	}
	return errors.Join(errs...)
}
