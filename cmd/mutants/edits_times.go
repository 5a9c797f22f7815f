package main

import (
	"slices"

	"github.com/march-id/march/internal/overlay"
)

// edits are the changes of the code for all mistakes. One program contains all of them, and
// MARCH_MUTANT chooses the mistake that it makes.
var edits = slices.Concat(segmentEdits, windowEdits, recoverEdits, mirrorEdits)

// windowEdits are the edits of the windows of workers, and of the generators.
var windowEdits = []overlay.Edit{
	{
		File: "allocator/timeid/take.go",
		From: `if first >= bound {`,
		To:   `if first >= bound && !mutant("no-window-check") {`,
	},
	{
		File: "allocator/ledger/worker/choose.go",
		From: `by: lease.ID(), free: lease.Until}`,
		To:   `by: lease.ID(), free: mutated("from-below-until", lease.Until, lease.From)}`,
	},
	{
		File: "allocator/ledger/worker/choose.go",
		From: `&& lease.Stamp.Epoch == f.Stamp.Epoch {`,
		To:   `&& (lease.Stamp.Epoch == f.Stamp.Epoch || mutant("read-back-of-any-epoch")) {`,
	},
	{
		File: "allocator/ledger/worker/choose.go",
		From: `if !lease.FreeOf(f.Stamp.Epoch) && c.free < f.NotBefore {`,
		To:   `if !lease.FreeOf(f.Stamp.Epoch) && c.free < f.NotBefore && (!c.mine || !mutant("read-back-of-any-epoch")) {`,
	},
	{
		File: "allocator/ledger/worker/renew.go",
		From: `if lease.Incarnation != i.Incarnation() || lease.From != held.Window().From {`,
		To:   `if (lease.Incarnation != i.Incarnation() || lease.From != held.Window().From) && !mutant("lowered-by-another") {`,
	},
	{
		File: "allocator/ledger/footing.go",
		From: `case goes && (!own.held || own.worker.From != w.From):`,
		To:   `case goes && (!own.held || own.worker.From != w.From && !mutant("lowered-by-another")):`,
	},
	{
		File: "allocator/ledger/worker/renew.go",
		From: `!slice.Contains(held.id.Number) {`,
		To:   `!slice.Contains(held.id.Number) && !mutant("slice-not-compared") {`,
	},
	{
		File: "allocator/ledger/footing.go",
		From: `append(l.Holds(f.state), store.Unchanged(registration), unchanged),`,
		To: `slices.Concat(mutated("window-no-layout", l.Holds(f.state), l.Holds(f.state)[:1]),
			mutated("window-no-key", []store.Cond{store.Unchanged(registration), unchanged}, []store.Cond{store.Unchanged(registration)})),`,
	},
	{
		File: "allocator/ledger/footing.go",
		From: `	"context"
	"strconv"`,
		To: `	"context"
	"slices"
	"strconv"`,
	},
	{
		File: "allocator/ledger/footing.go",
		From: `NotBefore: state.notBefore,`,
		To:   `NotBefore: mutated("not-before-ignored", state.notBefore, 0),`,
	},
}
