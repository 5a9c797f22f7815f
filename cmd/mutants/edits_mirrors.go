package main

import "github.com/march-id/march/internal/overlay"

// mirrorEdits are the edits of mirrors, and of the recover that asks them.
var mirrorEdits = []overlay.Edit{
	{
		File: "allocator/ledger/mirror/mirror.go",
		From: `		r.next[at], r.total[at], r.at[at] = max(next, r.next[at])`,
		To:   `		r.next[at], r.total[at], r.at[at] = mutated("mirror-lowered", max(next, r.next[at]), next)`,
	},
	{
		File: "allocator/ledger/mirror/follow.go",
		From: `c.sender != (store.Sender{}) && answer.Sender != c.sender:`,
		To:   `c.sender != (store.Sender{}) && answer.Sender != c.sender && !mutant("views-joined"):`,
	},
	{
		File: "allocator/ledger/mirror/follow.go",
		From: `			if change.Err != nil {
				return change.Err
			}
`,
		To: `			if change.Err != nil && mutant("views-joined") {
				changes = f.cfg.Cluster.Store.Watch(ctx, []store.Interval{all}, reach+1)
				continue
			}
			if change.Err != nil {
				return change.Err
			}
`,
	},
	{
		File: "allocator/ledger/mirror/mirror.go",
		From: `			m.vanish(record.NewInstanceID(key.Room, key.Instance), "")
`,
		To: `			m.vanish(record.NewInstanceID(key.Room, key.Instance), "")
			for _, p := range m.rest.Processes {
				p.Left = p.Left || p.Vanished && mutant("vanished-is-left")
			}
`,
	},
	{
		File: "allocator/ledger/recovery/mirrors.go",
		From: `	r.mu.total = max(r.mu.total, rest.Total)
`,
		To: `	r.mu.total = max(r.mu.total, mutated("mirrors-totals-ignored", rest.Total, 0))
	if rest.Layout.Layout.Version > r.mu.version && mutant("mirrors-epoch-latest") {
		r.mu.version, r.mu.latest = rest.Layout.Layout.Version, rest.Latest
	}
`,
	},
	{
		File: "allocator/ledger/recovery/mirrors.go",
		From: `	} else if b.life = cmp.Or(`,
		To: `	}
	if len(found) > 0 && !mutant("tombstone-over-a-living-tag") {
	} else if b.life = cmp.Or(`,
	},
	{
		File: "allocator/ledger/recovery/raise.go",
		From: `b.life != "" && !there {`,
		To:   `b.life != "" && (!there || mutant("tombstone-over-a-living-tag")) {`,
	},
	{
		File: "allocator/ledger/recovery/mirrors.go",
		From: `(at == latest || p.Beat.After(lived))`,
		To:   `(at == latest || p.Beat.After(lived) || mutant("rehearsal-is-later"))`,
	},
	{
		File: "allocator/ledger/mirror/mirror.go",
		From: `!m.shown[incarnation]`,
		To:   `!m.shown[incarnation] && !mutant("gone-still-registered")`,
	},
}
