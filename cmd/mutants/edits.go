package main

import (
	"path"

	"github.com/march-id/march/internal/overlay"
)

// segmentEdits are the edits of leases of segments, and of the code that relies on them.
var segmentEdits = []overlay.Edit{
	{
		File: "allocator/ledger/claim.go",
		From: `	return txn
`,
		To: `	switch segment := len(c.also) > 0; { // otherwise it is a window
	case segment && mutant("no-layout"), !segment && mutant("window-no-layout"):
		txn.If = append(txn.If[:1:1], txn.If[2:]...)
	case segment && mutant("no-epoch"):
		txn.If = append(txn.If[:0:0], txn.If[1:]...)
	case segment && mutant("no-registration"):
		txn.If = append(txn.If[:2:2], txn.If[3:]...)
	case segment && mutant("no-mark"), !segment && mutant("window-no-key"):
		txn.If = append(txn.If[:3:3], txn.If[4:]...)
	case segment && mutant("no-tag"):
		txn.If = txn.If[:4:4]
	}
	return txn
`,
	},
	{
		File: "allocator/ledger/lease.go",
		From: `case serves && s.mark.Stamp != state.stamp():`,
		To:   `case serves && s.mark.Stamp != state.stamp() && !mutant("no-floor"):`,
	},
	{
		File: "allocator/ledger/lease.go",
		From: `s.floor == nil || s.floor.stamp != stamp`,
		To:   `s.floor == nil || s.floor.stamp != stamp && !mutant("floor-before-layout")`,
	},
	{
		File: "allocator/ledger/lease.go",
		From: `s.floor = true, mark, revision, "", nil`,
		To:   `s.floor = true, mark, revision, "", mutated("floor-before-layout", nil, s.floor)`,
	},
	{
		File: "allocator/ledger/lease.go",
		From: `Txn{If: l.Holds(state), Then: ops}`,
		To:   `Txn{If: mutated("stale-floor", l.Holds(state), l.Holds(state)[:1]), Then: ops}`,
	},
	{
		File: "allocator/ledger/epoch_clock.go",
		From: `	t.checked = check{}
	if t.suspicion == nil {`,
		To: `	if !mutant("suspicion-keeps-check") {
		t.checked = check{}
	}
	if t.suspicion == nil {`,
	},
	{
		File: "allocator/ledger/lease.go",
		From: `	for i, room := range state.layout.Ever {
		if kv, ok`,
		To: `	for i, room := range state.layout.Ever {
		if _, serves := state.layout.Layout.Ranges[room]; !serves && mutant("floor-of-present-rooms") {
			continue
		}
		if kv, ok`,
	},
	{
		File: "allocator/ledger/record/mark.go",
		From: `if m.Total < margins.Total {`,
		To:   `if m.Total < margins.Total && !mutant("margin-below-start") {`,
	},
	{
		File: "allocator/ledger/record/mark.go",
		From: `if total <= m.Total || largestStep == 0 {`,
		To:   `if total <= m.Total || largestStep == 0 || mutant("floor-without-margin") {`,
	},
	{
		File: "allocator/ledger/record/mark.go",
		From: `AbsentMark(t.Start, t.BaseTotal)`,
		To:   `AbsentMark(t.Start, mutated("absent-has-total", t.BaseTotal, margins.Total))`,
	},
	{
		File: "allocator/ledger/lease.go",
		From: `	_, err := s.instance.ledger.Refresh(ctx)
`,
		To: `	if mutant("retry-forgets-mark") {
		s.raw, s.mark.Next = string(s.value()), 0
	}
	_, err := s.instance.ledger.Refresh(ctx)
`,
	},
	{
		File: "allocator/ledger/claim.go",
		From: `	if !answer.Succeeded {
		return 0, false, i.refused(`,
		To: `	if !answer.Succeeded && !(mutant("retry-is-success") && len(c.also) > 0 && len(answer.Got[1]) > 0 &&
		string(answer.Got[1][0].Value) == string(c.then[0].Put.Value)) {
		return 0, false, i.refused(`,
	},
	{
		File: "allocator/ledger/claim.go",
		From: `	if err != nil {
		return 0, false, i.noted(err)
	}
	if !answer.Succeeded`,
		To: `	if err != nil {
		if mutant("unknown-is-success") && len(c.also) > 0 {
			return 0, true, nil
		}
		return 0, false, i.noted(err)
	}
	if !answer.Succeeded`,
	},
	{
		File: "allocator/segment.go",
		From: `l.align(r, base)`,
		To:   `l.align(r, mutated("from-the-end", base, max(min(base, limit-n), 0)))`,
	},
	{
		File: "allocator/part.go",
		From: `return s.Version < p.Version && !p.Keeps(s)`,
		To:   `return s.Version < p.Version && !p.Keeps(s) && !mutant("never-outdated")`,
	},
	{
		File: "allocator/part.go",
		From: `p.Boundary == s.Boundary &&`,
		To:   `(p.Boundary == s.Boundary || mutant("kept-over-boundary")) &&`,
	},
	{
		File: "allocator/chain.go",
		From: `l.seg.Split(taken)`,
		To:   `l.seg.Split(mutated("put-back-whole", taken, 0))`,
	},
	{
		File: "allocator/chain.go",
		From: `	c.mu.pace.leased += seg.Count
	c.shorten(rest)
`,
		To: `	c.mu.pace.leased += seg.Count
	c.shorten(mutated("leased-and-kept", rest, c.mu.tail[0]))
`,
	},
	{
		File: "allocator/renew.go",
		From: `return c.mu.part.Version >= part.Version && !c.holdsAny(c.mu.part.Outdates)`,
		To:   `return c.mu.part.Version >= part.Version && (!c.holdsAny(c.mu.part.Outdates) || mutant("renewed-early"))`,
	},
	{
		File: "allocator/refill.go",
		From: `case !c.unordered && seg.First <= c.mu.last:`,
		To:   `case !c.unordered && seg.First <= c.mu.last && !mutant("no-growth-check"):`,
	},
	{
		File: "allocator/gate.go",
		From: `	first, got = l.takeN(n)
	if got > 0 {`,
		To: `	first, got = l.takeN(n)
	if got > 0 && !mutant("gate-asked-before") {`,
	},
	{
		File: "room/strict.go",
		From: `if remaining > 0 {`,
		To:   `if remaining > 0 || mutant("gate-open") {`,
	},
	{
		File: "allocator/ledger/contact.go",
		From: `	l.confirmations.Store(l.confirmations.Load().with(layout, sent))
`,
		To: `	if mutant("confirmed-when-answered") {
		sent = time.Now()
	}
	l.confirmations.Store(l.confirmations.Load().with(layout, sent))
`,
	},
	{
		File: "room/strict.go",
		From: `if !chain.Gated() {`,
		To:   `if !chain.Gated() || mutant("whole-hold-for-clients") {`,
	},
	{
		File: "allocator/ledger/presence.go",
		From: `return copied, nil`,
		To:   `return mutated("copy-unseen", copied, missing), nil`,
	},
	{
		File: "console/drive.go",
		From: `if blocking > 0 {`,
		To:   `if blocking > 0 && !mutant("moves-unreported") {`,
	},
	{
		File: "allocator/ledger/recovery/raise.go",
		From: `	mark = mark.Raised(to.next)
`,
		To: `	mark = mark.Raised(to.next)
	if len(mark.Eras) > 0 && mutant("raise-takes-total") {
		mark.Total = r.report.Total
	}
`,
	},
	{
		File: "allocator/ledger/recovery/raise.go",
		From: `max(mark.Total, min(to.total, r.found.epoch.MarginTotal))`,
		To: `mutated("raise-above-the-halt", mutated("raise-keeps-total", max(mark.Total, min(to.total,
	r.found.epoch.MarginTotal)), mark.Total), max(mark.Total, to.total))`,
	},
	{
		File: "allocator/ledger/recovery/stored.go",
		From: `r.found.epochKV.Value, total, r.cfg.Actor`,
		To:   `r.found.epochKV.Value, mutated("raise-above-the-halt", total, 0), r.cfg.Actor`,
	},
	{
		File: "allocator/ledger/recovery/decide.go",
		From: `p.Total = r.mu.total + p.Margin`,
		To:   `p.Total = r.mu.total + mutated("no-margin", p.Margin, 0)`,
	},
	{
		File: "allocator/ledger/restore.go",
		From: `case q.Barrier == nil:`,
		To:   `case q.Barrier == nil || mutant("no-barrier"):`,
	},
	{
		File: "allocator/ledger/restore.go",
		From: `	ctx, cancel := context.WithTimeout(ctx, l.tryFor())
`,
		To: `	if mutant("barrier-unseen") {
		return halted{record.Halt{Nonce: b.Nonce}, b.ClusterID, 0}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, l.tryFor())
`,
	},
	{
		File: "allocator/ledger/recovery/ask.go",
		From: `		r.with(func() { before = r.mu.learned })
`,
		To: `		r.with(func() { before = r.mu.learned })
		if mutant("unconfirmed-answers") {
			return nil
		}
`,
	},
	{
		File: "allocator/ledger/recovery/ask.go",
		From: `		failed = `,
		To: `		if mutant("recover-by-store") {
			return nil
		}
		failed = `,
	},
	{
		File: "allocator/ledger/recovery/ask.go",
		From: `lines.Len() == 0 {`,
		To:   `lines.Len() == 0 || mutant("recover-unanswered") {`,
	},
	{
		File: "allocator/ledger/recovery/known.go",
		From: `s.Left <= r.found.beat.Revision)`,
		To:   `(s.Left <= r.found.beat.Revision || mutant("left-without-beat")))`,
	},
	{
		File: "allocator/ledger/epoch_clock.go",
		From: `version > t.version {`,
		To:   `version > t.version || mutant("missed-epoch") {`,
	},
	{
		File: "allocator/ledger/restore.go",
		From: `	if keeps {
		return known, true`,
		To: `	if keeps || mutant("all-answered") {
		return known, true`,
	},
	{
		File: "allocator/ledger/restore.go",
		From: `raising = floor < own.leased`,
		To:   `raising = floor < own.leased && !mutant("orphan-raises-nothing")`,
	},
	{
		File: "allocator/ledger/restore.go",
		From: `op.Get.At = s.began`,
		To:   `op.Get.At = mutated("present-floor", s.began, 0)`,
	},
	{
		File: "allocator/ledger/restore.go",
		From: `		for _, r := range raises {
`,
		To: `		for _, r := range raises {
			if mutant("orphan-raises-own") && r.key != l.keys.Mark(i.room, tag) {
				continue
			}
`,
	},
	{
		File: "allocator/ledger/record/bounds.go",
		From: `return max(known+RecoverVersions, int64(at.Sub(versionsBegan)/time.Second))`,
		To: `return mutated("recover-versions", max(known+RecoverVersions, int64(at.Sub(versionsBegan)/time.Second)),
		known+RecoverVersions)`,
	},
	{
		File: "allocator/ledger/recovery/epoch.go",
		From: `Epoch: record.RandomHex(), Inc`,
		To:   `Epoch: mutated("epoch-counts", record.RandomHex(), "00000000000000000000000000000001"), Inc`,
	},
	{
		File: "allocator/ledger/probe.go",
		From: `if !s.full || s.beatKV`,
		To:   `if !s.full || mutant("no-beat") || s.beatKV`,
	},
	{
		File: "allocator/ledger/lease.go",
		From: `Next: mark.Next, Version`,
		To:   `Next: mutated("journal-late", mark.Next, s.mark.Next), Version`,
	},
	{
		File: "allocator/ledger/claim.go",
		From: `case answer.Revision <= before.seen:`,
		To:   `case answer.Revision <= before.seen && !mutant("no-revision-check"):`,
	},
	{
		File: "allocator/ledger/ledger.go",
		From: ` && pinned != answer.ClusterID {`,
		To:   ` && pinned != answer.ClusterID && !mutant("no-cluster-check") {`,
	},
	{
		File: "allocator/ledger/admin/instances.go",
		From: `(r.Epoch != inForce.Epoch || r.Version < inForce.Layout)`,
		To:   `(r.Epoch != inForce.Epoch && !mutant("old-report") || r.Version < inForce.Layout && !mutant("report-before-recover"))`,
	},
	{
		File: "allocator/ledger/unconfirmed.go",
		From: `a.mu.unconfirmed && a.requires(s)`,
		To:   `a.mu.unconfirmed && a.requires(s) && !mutant("blank-leases")`,
	},
}

// switches returns the files that make the edited packages make one mistake: the functions that
// the edits call.
func switches() []overlay.Edit {
	written := make(map[string]bool)
	var all []overlay.Edit
	for _, e := range edits {
		dir := path.Dir(e.File)
		if written[dir] {
			continue
		}
		written[dir] = true
		all = append(all, overlay.Edit{File: path.Join(dir, "mutant.go"), To: "package " + path.Base(dir) + `

import "os"

var chosen = os.Getenv("MARCH_MUTANT")

// mutant reports whether the program is to make a mistake.
func mutant(name string) bool { return name == chosen }

// mutated returns what is wrong in a line of code if the program is to make a mistake.
func mutated[T any](name string, right, wrong T) T {
	if mutant(name) {
		return wrong
	}
	return right
}
`})
	}
	return all
}
