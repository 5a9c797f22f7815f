package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/march-id/march/cmd/chaos/internal/cluster"
	"github.com/march-id/march/cmd/internal/proxy"
)

// memberFaults hurt etcd's members and the links between them.
func memberFaults() []fault {
	return []fault{
		{"kill member", "a member of etcd is killed", killMembers(anyMember)},
		{"kill leader", "etcd's leader is killed", killMembers(leader)},
		{"kill quorum", "two members of etcd are killed", killMembers(twoMembers)},
		{"kill etcd", "all members of etcd are killed", killMembers(allMembers)},
		{"pause member", "a member of etcd is stopped for 1 to 5 s", pauseMembers(anyMember)},
		{"pause leader", "etcd's leader is stopped for 1 to 5 s", pauseMembers(leader)},
		{"pause quorum", "two members of etcd are stopped for 1 to 5 s", pauseMembers(twoMembers)},
		{"isolate member", "a member hears nothing of the others, and they nothing of it",
			peers(anyMember, aroundBoth, bothWays)},
		{"isolate leader", "the leader hears nothing of the others, and they nothing of it",
			peers(leader, aroundBoth, bothWays)},
		{"half-isolate member", "a member hears the others and is not heard, or the reverse",
			peers(anyMember, fromOrTo, bothWays)},
		{"slow peers", "what members tell each other takes longer", peers(allMembers, aroundBoth, slowPeers)},
		{"cut peers", "connections between members are cut, again and again", peers(anyMember, aroundBoth, cutting)},
		{"move leader", "another member is made the leader", moveLeader},
		{"replace member", "a member is removed, and added again without its data", replaceMember},
		{"compact", "etcd's history is compacted", compact},
		{"defragment", "members are defragmented", defragment},
		{"fill quota", "etcd is filled up to its quota, then freed and disarmed", fillQuota},
		{"limit files of member", "a member cannot write its files any longer", limitMember},
	}
}

type chooseMembers func(ctx context.Context, d *driver, r *rand.Rand) ([]*cluster.Member, error)

func anyMember(_ context.Context, d *driver, r *rand.Rand) ([]*cluster.Member, error) {
	return []*cluster.Member{pick(r, d.Members)}, nil
}

func leader(ctx context.Context, d *driver, _ *rand.Rand) ([]*cluster.Member, error) {
	if m := d.Leader(ctx); m != nil {
		return []*cluster.Member{m}, nil
	}
	return nil, fmt.Errorf("%w: no member leads", errSkip)
}

func twoMembers(_ context.Context, d *driver, r *rand.Rand) ([]*cluster.Member, error) {
	two := slices.Clone(d.Members)
	r.Shuffle(len(two), func(i, j int) { two[i], two[j] = two[j], two[i] })
	return two[:2], nil
}

func allMembers(_ context.Context, d *driver, _ *rand.Rand) ([]*cluster.Member, error) {
	return d.Members, nil
}

func memberNames(members []*cluster.Member) string {
	var list []string
	for _, m := range members {
		list = append(list, m.Name)
	}
	return joined(list)
}

// await waits until all members are healthy.
func (d *driver) await(ctx context.Context) error {
	for _, m := range d.Members {
		if err := m.Await(ctx); err != nil {
			return err
		}
	}
	return nil
}

func killMembers(choose chooseMembers) func(context.Context, *driver, *rand.Rand) (*injury, error) {
	return func(ctx context.Context, d *driver, r *rand.Rand) (*injury, error) {
		of, err := choose(ctx, d, r)
		if err != nil {
			return nil, err
		}
		for _, m := range of {
			if err := m.Down(); err != nil {
				return nil, err
			}
		}
		return &injury{target: memberNames(of), lasts: between(r, 0, 3*time.Second),
			end: func(ctx context.Context) error {
				for _, m := range of {
					m.Keep(true)
				}
				return d.await(ctx)
			}}, nil
	}
}

func pauseMembers(choose chooseMembers) func(context.Context, *driver, *rand.Rand) (*injury, error) {
	return func(ctx context.Context, d *driver, r *rand.Rand) (*injury, error) {
		of, err := choose(ctx, d, r)
		if err != nil {
			return nil, err
		}
		for _, m := range of {
			if err := m.Signal(stopSignal); err != nil {
				return nil, err
			}
		}
		return &injury{target: memberNames(of), lasts: between(r, time.Second, 5*time.Second),
			end: func(ctx context.Context) error {
				for _, m := range of {
					if err := m.Signal(contSignal); err != nil {
						return err
					}
				}
				return d.await(ctx)
			}}, nil
	}
}

// around draws the links near some members to hurt.
type around func(d *driver, of []*cluster.Member, r *rand.Rand) (links []*proxy.Link, detail string)

// aroundBoth are the links from and to them.
func aroundBoth(d *driver, of []*cluster.Member, _ *rand.Rand) ([]*proxy.Link, string) {
	return append(d.dialled(of), d.dialling(of)...), ""
}

// fromOrTo are the links by which they dial, or by which other members dial them. Members
// mostly receive over streams that they dial.
func fromOrTo(d *driver, of []*cluster.Member, r *rand.Rand) ([]*proxy.Link, string) {
	if r.IntN(2) == 0 {
		return d.dialling(of), "where it dials"
	}
	return d.dialled(of), "where it is dialled"
}

func (d *driver) dialling(of []*cluster.Member) (links []*proxy.Link) {
	for _, m := range of {
		for _, l := range m.Peers {
			links = append(links, l)
		}
	}
	return links
}

func (d *driver) dialled(of []*cluster.Member) (links []*proxy.Link) {
	for _, m := range d.Members {
		for name, l := range m.Peers {
			if slices.ContainsFunc(of, func(m *cluster.Member) bool { return m.Name == name }) {
				links = append(links, l)
			}
		}
	}
	return links
}

func slowPeers(r *rand.Rand) (proxy.Fault, time.Duration, string) {
	delay := between(r, 5*time.Millisecond, 250*time.Millisecond)
	return proxy.Fault{Delay: delay}, 0, delay.Round(time.Millisecond).String()
}

func peers(choose chooseMembers, around around, ail ailment) func(context.Context, *driver,
	*rand.Rand) (*injury, error) {
	return func(ctx context.Context, d *driver, r *rand.Rand) (*injury, error) {
		of, err := choose(ctx, d, r)
		if err != nil {
			return nil, err
		}
		links, where := around(d, of, r)
		f, every, how := ail(r)
		cutAtEnd := r.IntN(2) == 0
		i := d.hurtLinks(links, f, every, cutAtEnd, &injury{
			target: memberNames(of), detail: how + " " + where, lasts: between(r, 500*time.Millisecond, 5*time.Second),
		})
		end := i.end
		i.end = func(ctx context.Context) error {
			if err := end(ctx); err != nil {
				return err
			}
			return d.await(ctx)
		}
		return i, nil
	}
}

// limitMember keeps a member from writing beyond the first bytes of any file, its log, too: the
// member ends by itself, and is started again without the limit.
func limitMember(ctx context.Context, d *driver, r *rand.Rand) (*injury, error) {
	m := pick(r, d.Members)
	m.Expect()
	ended := m.Ended()
	if err := m.LimitFiles(uint64(r.IntN(1 << 16))); err != nil {
		return nil, fmt.Errorf("%w: %w", errSkip, err)
	}
	detail := "it ended"
	select {
	case <-ended:
	case <-ctx.Done():
	case <-time.After(5 * time.Second):
		detail = "it lived on"
	}
	return &injury{target: m.Name, detail: detail, end: func(ctx context.Context) error {
		if detail == "it lived on" {
			if err := m.LimitFiles(unlimited); err != nil {
				return err
			}
		}
		return d.await(ctx)
	}}, nil
}
