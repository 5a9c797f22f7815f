package recovery

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
)

// progressEvery is the number of tags between two reports of progress.
const progressEvery = 1000

// decide brings the report up to date, and chooses margin and layout. Its error is
// Refused if an operator has to decide first.
func (r *run) decide(ctx context.Context) error {
	err := r.complete()
	if namedErr := r.checkNamed(); namedErr != nil {
		return namedErr
	}
	unseen := r.chooseBounds()
	if err != nil && len(unseen) == 0 && r.cfg.Off != nil {
		err = r.askOperator(ctx)
		if err != nil {
			return err
		}
		unseen = r.chooseBounds()
	}
	if len(unseen) > 0 {
		err = r.noMargin(ctx, unseen, err)
	}
	if p := r.report; p.Margin > record.MostMargin-(p.Total-p.Margin) {
		return allocator.Errorf(allocator.Refused,
			"margin: %d, and %d in the recovers before; allowed: up to %d together", p.Margin, p.Total-p.Margin,
			int64(record.MostMargin))
	}
	layoutErr := r.chooseLayout()
	if limitErr := r.limited(ctx); limitErr != nil {
		return limitErr
	}
	return cmp.Or(r.unreadableMarks(), err, layoutErr)
}

// chooseBounds chooses the margin, and when windows may begin. It returns the lost instances of
// which no mirror saw all, if the operator gave no margin.
func (r *run) chooseBounds() (unseen []record.InstanceID) {
	r.with(func() {
		r.windowsBegin()
		unseen = r.chooseMargin()
	})
	return unseen
}

// longestTick is the longest unit of time-ordered IDs.
const longestTick = time.Second

// windowsBegin returns when windows may begin in the new epoch, in Unix ms, and reports it: after all
// windows of an instance that was left out, and not before the not_before of any epoch
// so far. The windows of such an instance end at most LongestWindow after its clock,
// and two clocks differ by at most twice MaxAhead. An instance whose machine is off has
// issued no tick that lies further ahead of that than MaxAhead. Numbers are free of the not_before
// that stands in their keys, so one that covers more instances is a later one. The caller holds mu.
func (r *run) windowsBegin() (at int64) {
	if r.report.Waits = ""; len(r.report.Missing) > 0 {
		after := record.LongestWindow + 2*record.MaxAhead
		if r.report.Waits = r.waits(); r.report.Waits == "" {
			after, r.report.Waits = 3*record.MaxAhead+longestTick, "clocks may differ until then"
		}
		at = r.cluster.Now().Add(after).UnixMilli()
	}
	if r.notBefore > 0 && r.notBefore >= at {
		at, r.report.Waits = r.notBefore, "an instance that was left out of an earlier recover may issue until then"
		if len(r.report.Missing) > 0 {
			at++
		}
	}
	if r.report.NotBefore = (time.Time{}); at > 0 {
		r.report.NotBefore = time.UnixMilli(at)
	}
	return at
}

// waits returns whose windows must be over before others begin; "" if no lost instance runs, and
// none has lent a worker to a caller's process, which may run on. A mirror that saw all of an
// instance saw that. The caller holds mu.
func (r *run) waits() string {
	lost := r.lost()
	for _, id := range lost {
		const may = "an instance that was left out may issue until then"
		switch {
		case slices.Contains(r.cfg.Stopped, id):
		case r.answers(id):
			return may
		default:
			return may + " (--stopped " + string(id) + " if its machine is off)"
		}
	}
	if unseen := r.witnessed(); len(unseen) > 0 {
		return "callers may have workers of " + someOf(unseen) + ": no mirror saw all that it leased"
	}
	for _, w := range r.workers {
		of := func(id record.InstanceID) bool { return strings.HasPrefix(string(id), string(w.Room)+"/") }
		if w.Caller && slices.ContainsFunc(lost, of) {
			return "callers may have workers that room " + string(w.Room) + " lent"
		}
	}
	return ""
}

// chooseMargin chooses the margin of this recover: the operator's; none if every instance
// answered; or else what lost instances may have leased after all that mirrors saw. It grows if
// an instance falls silent after the first choice. It returns the lost instances of which no
// mirror saw all: without the operator's margin recover does not go on. The caller holds mu.
func (r *run) chooseMargin() (unseen []record.InstanceID) {
	p := r.report
	if r.cfg.Margin != nil {
		p.Margin = *r.cfg.Margin
	} else if unseen = r.witnessed(); len(unseen) == 0 {
		p.Margin = max(p.Margin, witnessedSteps*int64(len(r.lost())))
	}
	p.Total = r.total + p.Margin
	return unseen
}

// chooseLayout chooses the layout that is put in force, and its version.
func (r *run) chooseLayout() error {
	p := r.report
	p.Known = r.mirroredLayout()
	choice := r.cfg.Layout
	if choice == LayoutUndecided {
		if stored := p.Stored.Layout; stored.Ranges != nil && p.Known.Version > stored.Version &&
			!p.Known.Equal(stored) {
			p.Layout = stored // so that the report shows it
			return allocator.Errorf(allocator.Refused, "etcd has layout version %d, but an instance knows version %d, "+
				"with other ranges: choose with --layout known, --layout stored or --layout FILE",
				stored.Version, p.Known.Version)
		}
		choice = LayoutStored
	}
	switch choice {
	case LayoutKnown:
		p.Layout = p.Known
	case LayoutGiven:
		p.Layout = r.cfg.Given
	default:
		p.Layout = p.Stored.Layout
	}
	if p.Layout.Ranges == nil {
		return allocator.Errorf(allocator.Refused,
			"the layout in etcd cannot be read (%v): give one with --layout FILE, "+
				"or take an instance's with --layout known", r.found.layoutErr)
	}
	if err := p.Layout.Validate(); err != nil {
		return err
	}
	p.Layout.Version = record.RecoverVersion(max(r.version, r.mirrored), r.cluster.Now())
	if len(r.rooms) > allocator.MaxRooms {
		return allocator.Errorf(allocator.Refused,
			"etcd, instances and journals know of %d rooms in total; allowed in a cluster's life: %d: "+
				"recover from another backup, which has the right rooms", len(r.rooms), allocator.MaxRooms)
	}
	if rooms := record.Union(r.rooms, p.Layout.Rooms()); len(rooms) > allocator.MaxRooms {
		return allocator.Errorf(allocator.Refused, "%d rooms in total with this layout; allowed in a cluster's life: "+
			"%d: give a layout without new rooms (--layout)", len(rooms), allocator.MaxRooms)
	}
	return nil
}

// unreadableMarks refuses to go on if a mark cannot be read, unless the operator
// named its tag to leave it as it is.
func (r *run) unreadableMarks() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.listUnreadable()
	for key := range r.bad {
		parts, err := r.keys.Parse(key)
		if err == nil && parts.Kind == record.Marks && !slices.Contains(r.cfg.Skip, parts.Tag) {
			return allocator.Errorf(allocator.Refused,
				"%s cannot be read: repair it, or leave tag %s as it is with --skip-tag %s", key, parts.Tag, parts.Tag)
		}
	}
	return nil
}

// margins returns the margins of the new epoch.
func (r *run) margins() record.Margins {
	return record.Margins{Ends: r.found.epoch.MarginEnds}.Grown(r.report.Total, r.cluster.Now())
}

// limited names the tags that the margin takes to their limits, and those of which it leaves no ID
// in the present period.
func (r *run) limited(ctx context.Context) error {
	// A memory or a mirror may know margins that a restore forgot, or that nobody gave. Where an instance is
	// missing, the tags are read also to name those that cannot be.
	grows := r.report.Margin > 0 || r.report.Total > r.found.epoch.MarginTotal
	if !grows && len(r.report.Missing) == 0 || r.found.layoutErr != nil {
		return nil
	}
	stored, err := r.l.RefreshTo(ctx, 0)
	if err != nil {
		return err
	}
	tags, margins := int64(0), r.margins()
	walk := record.Walk{Keys: r.keys, Gets: r.l.Gets}
	bad, err := walk.EachTag(ctx, stored.Ever, func(t record.Tag, marks map[allocator.Room]record.Mark) error {
		terms, span := t.Terms().At(r.cluster.Now())
		if !grows {
			return nil
		}
		f := r.found.layout.Floor("", margins, terms, marks)
		floor := f.Least
		if span.End > 0 {
			r.report.Hourly = !stored.Upgraded()
			span, _ = terms.Begun(span, f.Most-1)
			floor = max(floor, r.found.layout.Open(span, "", margins, terms))
		}
		switch {
		case floor >= t.Limit:
			r.report.AtLimit = append(r.report.AtLimit, t.Name)
		case span.End > 0 && floor >= span.End:
			r.report.BeyondPeriod = append(r.report.BeyondPeriod, t.Name)
		}
		if tags++; tags%progressEvery == 0 {
			r.progress("reading tags", tags, 0)
		}
		return nil
	})
	for _, key := range bad {
		r.unreadable(key.Key, key.Err)
	}
	return err
}
