package main

import "github.com/march-id/march/internal/overlay"

// lifeEdits are the edits of second lives of names.
var lifeEdits = []overlay.Edit{
	{
		File: "allocator/ledger/record/second.go",
		From: `	t.LargestStep = max(t.LargestStep, dead.LargestStep)
`,
		To: `	if mutant("tombstone-ignored") {
		return t, nil
	}
	t.LargestStep = max(t.LargestStep, dead.LargestStep)
`,
	},
	{
		File: "allocator/ledger/record/mark.go",
		From: `m.Next = max(m.Next, t.Start, t.Skips[room], t.Least)`,
		To:   `m.Next = max(m.Next, t.Start, t.Skips[room], mutated("least-ignored", t.Least, 0))`,
	},
	{
		File: "allocator/ledger/record/second.go",
		From: `t.Start = max(t.Start, end)`,
		To:   `t.Start = mutated("start-below-the-old-life", max(t.Start, end), t.Start)`,
	},
	{
		File: "allocator/ledger/record/tag.go",
		From: `case s.Time != nil && s.Time.Layout() != to.Time.Layout():`,
		To: `case s.Time != nil && s.Time.Layout() != to.Time.Layout() &&
		(!mutant("later-epoch") || to.Time.Layout().Epoch <= s.Time.Layout().Epoch):`,
	},
	{
		File: "allocator/ledger/admin/tag.go",
		From: `all := len(rooms) == 0 && stored.Upgraded()`,
		To:   `all := len(rooms) == 0 && stored.Upgraded() && !mutant("skip-of-present-rooms")`,
	},
}
