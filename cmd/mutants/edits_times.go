package main

import (
	"slices"

	"github.com/march-id/march/internal/overlay"
)

// edits are the changes of the code for all mistakes. One program contains all of them, and
// MARCH_MUTANT chooses the mistake that it makes.
var edits = slices.Concat(segmentEdits, windowEdits, recoverEdits, mirrorEdits, lifeEdits)

// windowEdits are the edits of the windows of workers, and of the generators.
var windowEdits = []overlay.Edit{
	{
		File: "allocator/timeid/take.go",
		From: `if first >= bound {`,
		To:   `if first >= bound && !mutant("no-window-check") {`,
	},
	{
		File: "allocator/ledger/worker/choose.go",
		From: `free: last.Until}`,
		To:   `free: mutated("from-below-until", last.Until, last.From)}`,
	},
	{
		File: "allocator/ledger/worker/choose.go",
		From: `&& n.Ours.Stamp.Epoch == f.Stamp.Epoch {`,
		To:   `&& (n.Ours.Stamp.Epoch == f.Stamp.Epoch || mutant("read-back-of-any-epoch")) {`,
	},
	{
		File: "allocator/ledger/worker/choose.go",
		From: `if !n.Free(f.Stamp.Epoch, f.NotBefore) && c.free < f.NotBefore {`,
		To:   `if !n.Free(f.Stamp.Epoch, f.NotBefore) && c.free < f.NotBefore && (!c.mine || !mutant("read-back-of-any-epoch")) {`,
	},
	{
		File: "allocator/ledger/worker/renew.go",
		From: `	other, over := n.Over(lease)`,
		To: `	if !own && mutant("lowered-by-another") {
		lease, own = n.Ours, true
	}
	other, over := n.Over(lease)`,
	},
	{
		File: "allocator/ledger/worker/renew.go",
		From: `case over && n.Ours.Stamp != f.Stamp:`,
		To:   `case over && n.Ours.Stamp != f.Stamp && !mutant("goes-on-over-others"):`,
	},
	{
		File: "allocator/ledger/window.go",
		From: `l.keys.Numbers(answer.Got[1:], workers)`,
		To: `l.keys.Numbers(mutated("key-of-before-ignored", mutated("own-rooms-keys", answer.Got[1:], answer.Got[1:2]),
			answer.Got[1:len(answer.Got)-1]), workers)`,
	},
	{
		File: "allocator/ledger/recovery/decide.go",
		From: `if unseen := r.witnessed(); len(unseen) > 0 {`,
		To:   `if unseen := r.witnessed(); len(unseen) > 0 && !mutant("stopped-and-unseen") {`,
	},
	{
		File: "allocator/ledger/recovery/decide.go",
		From: `if w.Caller && slices.ContainsFunc(lost, of) {`,
		To:   `if w.Caller && slices.ContainsFunc(lost, of) && !mutant("stopped-lender") {`,
	},
	{
		File: "allocator/ledger/recovery/ask.go",
		From: `case !missing || flag == "--stopped" && r.answers(id):`,
		To:   `case !missing || flag == "--stopped" && r.answers(id) && !mutant("stopped-that-answers"):`,
	},
	{
		File: "allocator/ledger/machine/machine.go",
		From: `	return h.named(c) && (ours || !others)`,
		To:   `	return h.named(c) && (ours || !others || mutant("client-of-another-room"))`,
	},
	{
		File: "allocator/ledger/machine/machine.go",
		From: `	return !slices.ContainsFunc(h.claims, func(c claim) bool { return !c.Returned })`,
		To: `	return mutant("client-of-another-room") && h.Returned ||
		!slices.ContainsFunc(h.claims, func(c claim) bool { return !c.Returned })`,
	},
	{
		File: "allocator/ledger/machine/machine.go",
		From: `slices.Concat(v.conds, unchanged),`,
		To:   `slices.Concat(v.conds, mutated("client-own-key-only", unchanged, unchanged[:1])),`,
	},
	{
		File: "allocator/ledger/window.go",
		From: `case goes && (!own.held || own.worker.From != w.From):`,
		To:   `case goes && (!own.held || own.worker.From != w.From && !mutant("lowered-by-another")):`,
	},
	{
		File: "allocator/ledger/worker/renew.go",
		From: `!slice.Contains(held.id.Number) {`,
		To:   `!slice.Contains(held.id.Number) && !mutant("slice-not-compared") {`,
	},
	{
		File: "allocator/ledger/record/number.go",
		From: `if n.KV.ModRevision != 0 {`,
		To:   `if n.KV.ModRevision != 0 && !mutant("own-by-another-room") {`,
	},
	{
		File: "allocator/ledger/recovery/raise.go",
		From: `w.Until > n.Ours.Until`,
		To:   `w.Until > mutated("raised-by-another-room", n.Ours.Until, n.Last().Until)`,
	},
	{
		File: "allocator/ledger/record/worker.go",
		From: `return w.FreeOf == notBefore ||`,
		To:   `return w.FreeOf == notBefore || w.FreeOf > 0 && mutant("free-of-another") ||`,
	},
	{
		File: "allocator/ledger/recovery/raise.go",
		From: `w.Until == n.Last().Until && !over`,
		To:   `(w.Until == n.Last().Until && !over || mutant("freed-by-one-before"))`,
	},
	{
		File: "allocator/ledger/recovery/raise.go",
		From: `w.Incarnation == l.Incarnation && w.From`,
		To:   `(w.Incarnation == l.Incarnation || mutant("freed-by-one-before")) && w.From`,
	},
	{
		File: "allocator/ledger/recovery/decide.go",
		From: `			at++`,
		To: `			if !mutant("same-not-before") {
				at++
			}`,
	},
	{
		File: "allocator/ledger/memory.go",
		From: `own.worker.Until > m.mu.barred.Since.Add(2*record.MaxAhead).UnixMilli()`,
		To:   `(own.worker.Until > m.mu.barred.Since.Add(2*record.MaxAhead).UnixMilli() || mutant("freed-when-over"))`,
	},
	{
		File: "allocator/ledger/window.go",
		From: `NotBefore: state.notBefore,`,
		To:   `NotBefore: mutated("not-before-ignored", state.notBefore, 0),`,
	},
}
