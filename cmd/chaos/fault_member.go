package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/march-id/march/cmd/chaos/internal/cluster"
)

// memberFaults hurt etcd.
func memberFaults() []fault {
	return []fault{
		{"kill member", "a member of etcd is killed", killMember(anyMember)},
		{"kill leader", "etcd's leader is killed", killMember(leader)},
	}
}

type chooseMember func(ctx context.Context, d *driver, r *rand.Rand) (*cluster.Member, error)

func anyMember(_ context.Context, d *driver, r *rand.Rand) (*cluster.Member, error) {
	return pick(r, d.Members), nil
}

func leader(ctx context.Context, d *driver, _ *rand.Rand) (*cluster.Member, error) {
	if m := d.Leader(ctx); m != nil {
		return m, nil
	}
	return nil, fmt.Errorf("%w: no member leads", errSkip)
}

func killMember(choose chooseMember) func(context.Context, *driver, *rand.Rand) (*injury, error) {
	return func(ctx context.Context, d *driver, r *rand.Rand) (*injury, error) {
		m, err := choose(ctx, d, r)
		if err != nil {
			return nil, err
		}
		lasts := between(r, 0, 3*time.Second)
		if err := m.Down(killSignal); err != nil {
			return nil, err
		}
		return &injury{target: m.Name, lasts: lasts, end: func(ctx context.Context) error {
			m.Keep(true)
			return m.Await(ctx)
		}}, nil
	}
}
