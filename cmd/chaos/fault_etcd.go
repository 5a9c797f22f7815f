package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/march-id/march/cmd/chaos/internal/cluster"
	"github.com/march-id/march/cmd/chaos/internal/proc"
)

const unlimited = proc.Unlimited

// Faults of etcd: the work of its operators, and their accidents.

// etcd returns a client of some member that is not among those.
func (d *driver) etcd(r *rand.Rand, but ...*cluster.Member) (*clientv3.Client, error) {
	for {
		m := pick(r, d.Members)
		if len(but) == 0 || m != but[0] {
			return m.Etcd()
		}
	}
}

func moveLeader(ctx context.Context, d *driver, r *rand.Rand) (*injury, error) {
	of, err := leader(ctx, d, r)
	if err != nil {
		return nil, err
	}
	client, err := of[0].Etcd()
	if err != nil {
		return nil, err
	}
	m := pick(r, d.Members)
	for m == of[0] {
		m = pick(r, d.Members)
	}
	s, err := m.Status(ctx)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errSkip, err)
	}
	moving, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if _, err := client.MoveLeader(moving, s.Header.GetMemberId()); err != nil {
		return nil, fmt.Errorf("%w: %w", errSkip, err)
	}
	return &injury{target: of[0].Name, detail: "to " + m.Name, end: d.await}, nil
}

// replaceMember removes a member and adds it again without its data.
func replaceMember(ctx context.Context, d *driver, r *rand.Rand) (*injury, error) {
	m := pick(r, d.Members)
	client, err := d.etcd(r, m)
	if err != nil {
		return nil, err
	}
	s, err := m.Status(ctx)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errSkip, err)
	}
	removing, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	m.Expect()
	m.Keep(false)
	if _, err := client.MemberRemove(removing, s.Header.GetMemberId()); err != nil {
		m.Keep(true)
		return nil, fmt.Errorf("%w: %w", errSkip, err)
	}
	return &injury{target: m.Name, lasts: between(r, 0, 3*time.Second), end: func(ctx context.Context) error {
		if err := down(m); err != nil {
			return err
		}
		others := slices.DeleteFunc(slices.Clone(d.Members), func(other *cluster.Member) bool { return other == m })
		return errors.Join(d.anew(ctx, others, m), d.await(ctx))
	}}, nil
}

func compact(ctx context.Context, d *driver, r *rand.Rand) (*injury, error) {
	m := pick(r, d.Members)
	client, err := m.Etcd()
	if err != nil {
		return nil, err
	}
	s, err := m.Status(ctx)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errSkip, err)
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	revision := max(1, s.Header.GetRevision()-r.Int64N(200))
	if _, err := client.Compact(ctx, revision, clientv3.WithCompactPhysical()); err != nil {
		return nil, fmt.Errorf("%w: %w", errSkip, err)
	}
	return &injury{target: m.Name, detail: fmt.Sprintf("at revision %d of %d", revision, s.Header.GetRevision()),
		end: d.await}, nil
}

func defragment(ctx context.Context, d *driver, r *rand.Rand) (*injury, error) {
	of := []*cluster.Member{pick(r, d.Members)}
	if r.IntN(3) == 0 {
		of = d.Members
	}
	if err := d.defragment(ctx, of); err != nil {
		return nil, fmt.Errorf("%w: %w", errSkip, err)
	}
	return &injury{target: memberNames(of), end: d.await}, nil
}

func (d *driver) defragment(ctx context.Context, of []*cluster.Member) error {
	for _, m := range of {
		client, err := m.Etcd()
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		_, err = client.Defragment(ctx, m.Client)
		cancel()
		if err != nil {
			return err
		}
	}
	return nil
}

// filling is a prefix outside March's keys.
const filling = "/filling/"

// fillQuota fills etcd until it raises its alarm: from then on it refuses all writes.
func fillQuota(ctx context.Context, d *driver, r *rand.Rand) (*injury, error) {
	client, err := d.etcd(r)
	if err != nil {
		return nil, err
	}
	value := string(bytes.Repeat([]byte("filling "), 1<<17))
	filled := 0
	for ; filled <= cluster.Quota>>19; filled++ {
		putting, cancel := context.WithTimeout(ctx, 5*time.Second)
		_, err = client.Put(putting, fmt.Sprintf("%s%d", filling, filled), value)
		cancel()
		if errors.Is(err, rpctypes.ErrNoSpace) || ctx.Err() != nil {
			break
		}
	}
	detail := fmt.Sprintf("after %d MB", filled)
	if !errors.Is(err, rpctypes.ErrNoSpace) {
		detail = fmt.Sprintf("no alarm: %v", err)
	}
	return &injury{target: "all", detail: detail, lasts: between(r, 0, 2*time.Second),
		end: func(ctx context.Context) error {
			var last error
			err := cluster.Poll(ctx, "the alarm to be disarmed", func() bool {
				last = d.free(ctx, client)
				return last == nil
			})
			return errors.Join(err, last, d.await(ctx))
		}}, nil
}

// free follows etcd's manual.
func (d *driver) free(ctx context.Context, client *clientv3.Client) error {
	freeing, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	answer, err := client.Delete(freeing, filling, clientv3.WithPrefix())
	if err != nil {
		return err
	}
	if _, err := client.Compact(freeing, answer.Header.GetRevision(), clientv3.WithCompactPhysical()); err != nil &&
		!errors.Is(err, rpctypes.ErrCompacted) {
		return err
	}
	if err := d.defragment(ctx, d.Members); err != nil {
		return err
	}
	disarming, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if _, err := client.AlarmDisarm(disarming, &clientv3.AlarmMember{}); err != nil {
		return err
	}
	alarms, err := client.AlarmList(disarming)
	if err == nil && len(alarms.Alarms) > 0 {
		err = fmt.Errorf("alarms remain: %v", alarms.Alarms)
	}
	return err
}
