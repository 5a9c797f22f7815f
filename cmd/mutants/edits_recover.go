package main

import "github.com/march-id/march/internal/overlay"

// recoverEdits are the edits of recover, of entering an epoch and of leaving.
var recoverEdits = []overlay.Edit{
	{
		File: "allocator/ledger/restore.go",
		From: `from := max(slices.Index(m.incarnations, m.mu.leaser), 0)`,
		To:   `from := mutated("answer-of-the-one-before", max(slices.Index(m.incarnations, m.mu.leaser), 0), 0)`,
	},
	{
		File: "allocator/ledger/restore.go",
		From: `keeps = known && len(m.mu.epochs) > 0 && m.mu.epochs[len(m.mu.epochs)-1] == s.ended.Stopped`,
		To: `keeps = known && (mutant("not-in-the-stopped-epoch") ||
			len(m.mu.epochs) > 0 && m.mu.epochs[len(m.mu.epochs)-1] == s.ended.Stopped)`,
	},
	{
		File: "allocator/ledger/restore.go",
		From: `m.mu.raises, m.mu.uncompared = s.epoch, !known,`,
		To:   `m.mu.raises, m.mu.uncompared = s.epoch, !known || mutant("known-raises"),`,
	},
	{
		File: "allocator/ledger/restore.go",
		From: `	if err := i.compareAll(ctx, s); err != nil {
		return err
	}
`,
		To: `	if mutant("epoch-journaled-first") {
		if err := i.toJournal(ctx, s, journal.Record{}); err != nil {
			return err
		}
	}
	if err := i.compareAll(ctx, s); err != nil {
		return err
	}
`,
	},
	{
		File: "allocator/ledger/memory.go",
		From: `	if err := m.journal.Append(context.WithoutCancel(ctx), m.toNote(state, r, lease)); err != nil {`,
		To: `	if !lease && mutant("epoch-not-journaled") {
		return nil
	}
	if err := m.journal.Append(context.WithoutCancel(ctx), m.toNote(state, r, lease)); err != nil {`,
	},
	{
		File: "allocator/ledger/claim.go",
		From: ` != nil {
			return 0, false, i.noted(err)
		}
	}
	l.confirmLayout`,
		To: ` != nil && !mutant("journal-failed") {
			return 0, false, i.noted(err)
		}
	}
	l.confirmLayout`,
	},
	{
		File: "allocator/ledger/instance.go",
		From: `len(chain) == 0 || m.ledger.Check(ctx) != nil {
		return nil
	}
`,
		To: `len(chain) == 0 || m.ledger.Check(ctx) != nil {
		return nil
	}
	if mutant("covers-unseen") {
		return chain
	}
`,
	},
	{
		File: "allocator/ledger/presence.go",
		From: `if !p.sentChecked(before) {`,
		To:   `if !p.sentChecked(before) && !mutant("leave-unchecked") {`,
	},
	{
		File: "allocator/ledger/recovery/stored.go",
		From: `status.ClusterID != was.ClusterID || status.RaftIndex < was.RaftIndex || kv.ModRevision <= was.Revision {`,
		To: `!mutant("went-back-unseen") && (status.ClusterID != was.ClusterID || status.RaftIndex < was.RaftIndex ||
		kv.ModRevision <= was.Revision) {`,
	},
	{
		File: "allocator/ledger/recovery/ask.go",
		From: `m.Incarnations[len(m.Incarnations)-1] != before.incarnation {`,
		To:   `m.Incarnations[len(m.Incarnations)-1] != before.incarnation && !mutant("changes-of-another") {`,
	},
	{
		File: "allocator/ledger/recovery/ask.go",
		From: `a != nil && !slices.Contains(m.Incarnations, a.incarnation) {`,
		To:   `a != nil && !mutant("displaced-answer-counts") && !slices.Contains(m.Incarnations, a.incarnation) {`,
	},
	{
		File: "allocator/ledger/recovery/ask.go",
		From: `	r.missNamed()
`,
		To: `	if !mutant("named-not-missing") {
		r.missNamed()
	}
`,
	},
	{
		File: "allocator/ledger/recovery/known.go",
		From: `r.mu.total = max(r.mu.total, m.MarginTotal)`,
		To:   `r.mu.total = mutated("total-of-the-store", max(r.mu.total, m.MarginTotal), r.mu.total)`,
	},
	{
		File: "allocator/ledger/machine/machine.go",
		From: `	if _, err := l.LeasableState(ctx); err != nil {
		return false, err
	}
	back,`,
		To: `	if mutant("no-read-back") {
		return true, nil
	}
	if _, err := l.LeasableState(ctx); err != nil {
		return false, err
	}
	back,`,
	},
	{
		File: "allocator/ledger/recovery/ask.go",
		From: `		switch missing := slices.ContainsFunc(r.report.Missing, of); {
`,
		To: `		if mutant("typo-accepted") {
			continue
		}
		switch missing := slices.ContainsFunc(r.report.Missing, of); {
`,
	},
	{
		File: "allocator/ledger/machine/machine.go",
		From: `	if m.mu.epoch != epoch {
`,
		To: `	if m.mu.epoch != epoch && !mutant("halt-is-silence") {
`,
	},
	{
		File: "allocator/ledger/machine/machine.go",
		From: `m.unchanged(kv, sent) < record.LongestWindow+record.MaxAhead {`,
		To:   `m.unchanged(kv, sent) < record.LongestWindow+record.MaxAhead && !mutant("machine-of-a-worker") {`,
	},
	{
		File: "room/lend.go",
		From: `held.nonce != ask.Proof {`,
		To:   `held.nonce != ask.Proof && !mutant("nonce-unchecked") {`,
	},
	{
		File: "allocator/ledger/record/margins.go",
		From: `at.Add(marginFor)`,
		To:   `at.Add(mutated("margin-for-a-day", marginFor, 25*time.Hour))`,
	},
	{
		File: "allocator/ledger/lease.go",
		From: `last.Epoch != state.epoch || leased.First != span.First {`,
		To: `mutated("margin-where-opened", last.Epoch != state.epoch || leased.First != span.First,
			s.mark.Next <= span.First) {`,
	},
	{
		File: "allocator/ledger/record/mark.go",
		From: `steps := margins.in(span.Begins, t.BaseTotal)`,
		To:   `steps := mutated("period-without-margin", margins.in(span.Begins, t.BaseTotal), 0)`,
	},
	{
		File: "allocator/ledger/record/mark.go",
		From: `return max(m.Next, min(reach, p.End))`,
		To:   `return mutated("no-margin-in-a-period", max(m.Next, min(reach, p.End)), m.Next)`,
	},
	{
		File: "allocator/ledger/lease.go",
		From: `begun = max(begun, min(s.floor.Most-1, to))`,
		To:   `begun = max(begun, mutated("margin-opens-a-period", min(s.floor.Most-1, to), to))`,
	},
}
