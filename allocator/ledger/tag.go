package ledger

import (
	"bytes"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/march-id/march/allocator"
)

// TagSettings is what operators set of a tag.
type TagSettings struct {
	Start   int64 // the least ID ever issued; default 1, so that zero is not issued unless asked for
	Limit   int64 // the end of the IDs, exclusive; default allocator.MaxID
	Chain   allocator.Settings
	MaxJump int64 // see DefaultMaxJump
	// MaxSkew bounds how many IDs a room may lie behind the furthest room: one
	// that lies further behind skips ahead at its next lease. 0 is no bound.
	MaxSkew int64
	// StrictRetract has instances issue IDs of a layout only while it was
	// confirmed lately: rather none than one of residues that the room gave up.
	StrictRetract bool
	// Skips holds, for rooms that an operator made jump ahead, the least ID that
	// they may lease. See SkipTag.
	Skips map[allocator.Room]int64
}

// DefaultMaxJump is how far above the second largest mark of a tag (the tag's
// start where there is none) a room may be made to jump by a floor before an
// operator must agree by raising the tag's max_jump: so that a typo in one room
// does not drag all others to the end of the space. 10^15 IDs are 31 years at a
// million per second.
const DefaultMaxJump = 1_000_000_000_000_000

// DefaultTag returns the settings of a tag of which nothing was said.
func DefaultTag() TagSettings {
	return TagSettings{Start: 1, Limit: allocator.MaxID, Chain: allocator.DefaultSettings(), MaxJump: DefaultMaxJump}
}

// Validate checks 0 <= start < limit, the chain's settings and max_jump >= 1.
// Its error is Invalid.
func (s TagSettings) Validate() error {
	switch {
	case s.Start < 0 || s.Start >= allocator.MaxID:
		return allocator.Errorf(allocator.Invalid, "start: %d; allowed: 0 to %d", s.Start, int64(allocator.MaxID-1))
	case s.Limit <= s.Start:
		return allocator.Errorf(allocator.Invalid, "limit: %d; allowed: above start (%d), up to %d", s.Limit, s.Start, int64(allocator.MaxID))
	case s.MaxJump < 1:
		return allocator.Errorf(allocator.Invalid, "max_jump: %d; allowed: 1 to %d", s.MaxJump, int64(allocator.MaxID))
	case s.MaxSkew < 0:
		return allocator.Errorf(allocator.Invalid, "max_skew: %d; allowed: 0 (no bound) to %d", s.MaxSkew, int64(allocator.MaxID))
	}
	for room, to := range s.Skips {
		if to < 1 {
			return allocator.Errorf(allocator.Invalid, "skip of room %s: to %d; allowed: 1 to %d", room, to, int64(allocator.MaxID))
		}
	}
	return s.Chain.Validate()
}

// Tag is a tag as it is stored.
type Tag struct {
	Name     allocator.Tag
	Settings TagSettings
	Created  time.Time // by the clock of the process that created it

	kv    KV
	nonce string
}

func (t Tag) encode(nonce string) []byte {
	s := t.Settings
	v := &tagValue{
		Start: s.Start, Limit: s.Limit, MinStep: s.Chain.MinStep, MaxStep: s.Chain.MaxStep,
		Reserve: s.Chain.Reserve.String(), MaxJump: s.MaxJump, MaxSkew: s.MaxSkew, Prescale: s.Chain.Prescale,
		StrictRetract: s.StrictRetract, Created: t.Created, Nonce: nonce,
	}
	if !s.Chain.PrescaleUntil.IsZero() {
		v.PrescaleUntil = &s.Chain.PrescaleUntil
	}
	for _, room := range slices.Sorted(maps.Keys(s.Skips)) {
		v.Skips = append(v.Skips, skipValue{Room: string(room), To: s.Skips[room]})
	}
	return encode(v)
}

func (l *Ledger) decodeTag(kv KV) (Tag, error) {
	var v tagValue
	if err := decode(kv, &v); err != nil {
		return Tag{}, err
	}
	name, err := l.keys.parseTag(kv.Key)
	if err != nil {
		return Tag{}, err
	}
	reserve, err := time.ParseDuration(v.Reserve)
	if err != nil {
		return Tag{}, allocator.Errorf(allocator.Internal, "key %s: %w", kv.Key, err)
	}
	t := Tag{Name: name, Created: v.Created, kv: kv, nonce: v.Nonce, Settings: TagSettings{
		Start: v.Start, Limit: v.Limit, MaxJump: v.MaxJump, MaxSkew: v.MaxSkew, StrictRetract: v.StrictRetract,
		Chain: allocator.Settings{MinStep: v.MinStep, MaxStep: v.MaxStep, Reserve: reserve, Prescale: v.Prescale},
	}}
	if v.PrescaleUntil != nil {
		t.Settings.Chain.PrescaleUntil = *v.PrescaleUntil
	}
	for _, skip := range v.Skips {
		if t.Settings.Skips == nil {
			t.Settings.Skips = make(map[allocator.Room]int64, len(v.Skips))
		}
		t.Settings.Skips[allocator.Room(skip.Room)] = skip.To
	}
	if err := t.Settings.Validate(); err != nil {
		return Tag{}, allocator.Errorf(allocator.Internal, "key %s: %w", kv.Key, err)
	}
	return t, nil
}

// UnknownTag returns the NotFound error for a tag that does not exist.
func UnknownTag(name allocator.Tag) error {
	return allocator.Errorf(allocator.NotFound, "tag %s does not exist; create it with `march tag create %s`", name, name)
}

// CreateTag creates a tag. Its errors are Invalid, Exists and Unavailable.
func (l *Ledger) CreateTag(ctx context.Context, name allocator.Tag, settings TagSettings, actor string) (Tag, error) {
	if err := settings.Validate(); err != nil {
		return Tag{}, err
	}
	t := Tag{Name: name, Settings: settings, Created: now()}
	made, err := l.putTag(ctx, t, absent(l.keys.tag(name)), "create tag", nil, actor)
	if allocator.KindOf(err) == allocator.Conflict {
		return Tag{}, allocator.Errorf(allocator.Exists, "tag %s exists already", name)
	}
	return made, err
}

// UpdateTag changes a tag's settings by what change makes of them; it may be
// called more than once. start cannot be changed. Its errors are NotFound,
// Invalid, change's own, Conflict and Unavailable.
func (l *Ledger) UpdateTag(ctx context.Context, name allocator.Tag, change func(*TagSettings) error, actor string) (Tag, error) {
	const attempts = 5
	for range attempts - 1 {
		t, err := l.updateTag(ctx, name, change, actor)
		if allocator.KindOf(err) != allocator.Conflict {
			return t, err
		}
	}
	return l.updateTag(ctx, name, change, actor)
}

func (l *Ledger) updateTag(ctx context.Context, name allocator.Tag, change func(*TagSettings) error, actor string) (Tag, error) {
	t, err := l.Tag(ctx, name)
	if err != nil {
		return Tag{}, err
	}
	next := t
	next.Settings.Skips = maps.Clone(t.Settings.Skips)
	if err := change(&next.Settings); err != nil {
		return Tag{}, err
	}
	if err := next.Settings.Validate(); err != nil {
		return Tag{}, err
	}
	if next.Settings.Start != t.Settings.Start {
		return Tag{}, allocator.Errorf(allocator.Invalid, "start: cannot be changed (it is %d)", t.Settings.Start)
	}
	if bytes.Equal(next.encode(""), t.encode("")) {
		return t, nil
	}
	return l.putTag(ctx, next, unchanged(t.kv), "update tag", t.kv.Value, actor)
}

// SkipTag makes rooms, all of the current layout when none is named, lease only
// IDs from to on, and has them drop what they hold below it. IDs in between are
// never issued by those rooms. Its errors are UpdateTag's, and Refused when to
// lies more than max_jump above the tag's largest mark and force is not set.
//
// A skip is a tag's setting, not a write to marks: a base above the rule's is
// always safe, every lease compares the tag, and so it holds at once.
func (l *Ledger) SkipTag(ctx context.Context, name allocator.Tag, rooms []allocator.Room, to int64, force bool, actor string) (Tag, error) {
	record, err := l.Refresh(ctx)
	if err != nil {
		return Tag{}, err
	}
	if len(rooms) == 0 {
		rooms = record.Layout.Rooms()
	}
	for _, room := range rooms {
		if _, ok := record.Layout.Ranges[room]; !ok {
			return Tag{}, allocator.Errorf(allocator.NotFound, "room %s has no range in layout version %d; rooms: %v", room, record.Layout.Version, record.Layout.Rooms())
		}
	}
	marks, err := l.Marks(ctx, name)
	if err != nil {
		return Tag{}, err
	}
	return l.UpdateTag(ctx, name, func(s *TagSettings) error {
		largest := s.Start
		for _, mark := range marks {
			largest = max(largest, mark.Next)
		}
		switch {
		case to >= s.Limit:
			return allocator.Errorf(allocator.Invalid, "to: %d; allowed: below the tag's limit, %d", to, s.Limit)
		case to-largest > s.MaxJump && !force:
			return allocator.Errorf(allocator.Refused, "to: %d is %d above the tag's largest mark, %d, more than max_jump (%d); the IDs in between would never be issued: if that is meant, force it",
				to, to-largest, largest, s.MaxJump)
		}
		if s.Skips == nil {
			s.Skips = make(map[allocator.Room]int64, len(rooms))
		}
		for _, room := range rooms {
			s.Skips[room] = max(s.Skips[room], to)
		}
		return nil
	}, actor)
}

// putTag writes a tag under a condition. Its error is Conflict when the
// condition does not hold.
func (l *Ledger) putTag(ctx context.Context, t Tag, cond Cond, action string, was []byte, actor string) (Tag, error) {
	if err := l.attach(ctx); err != nil {
		return Tag{}, err
	}
	t.nonce = randomHex()
	key, value := l.keys.tag(t.Name), t.encode(t.nonce)
	answer, err := l.try(ctx, Txn{
		If:   []Cond{cond},
		Then: []Op{put(key, value), l.audit(actor, action, key, was, value)},
	})
	if err != nil || !answer.Succeeded { // unknown, or perhaps sent twice: the nonce tells
		if check, checkErr := l.Tag(ctx, t.Name); checkErr == nil && check.nonce == t.nonce {
			return check, nil
		}
	}
	if err != nil {
		return Tag{}, err
	}
	if !answer.Succeeded {
		return Tag{}, allocator.Errorf(allocator.Conflict, "tag %s was changed by somebody else just now", t.Name)
	}
	t.kv = KV{Key: key, Value: value, ModRevision: answer.Revision}
	return t, nil
}

// Tag returns a tag. Its error is NotFound where it does not exist.
func (l *Ledger) Tag(ctx context.Context, name allocator.Tag) (Tag, error) {
	if err := l.attach(ctx); err != nil {
		return Tag{}, err
	}
	answer, err := l.gets(ctx, get(l.keys.tag(name)))
	if err != nil {
		return Tag{}, err
	}
	kv, ok := answer.one(0)
	if !ok {
		return Tag{}, UnknownTag(name)
	}
	return l.decodeTag(kv)
}

// Tags returns up to n tags whose names begin with prefix and come after the
// name after, in the order of names.
func (l *Ledger) Tags(ctx context.Context, prefix string, after allocator.Tag, n int) ([]Tag, error) {
	if err := l.attach(ctx); err != nil {
		return nil, err
	}
	within := Interval{Key: l.keys.tags() + prefix, End: prefixEnd(l.keys.tags() + prefix)}
	if after != "" {
		within.Key = max(within.Key, l.keys.tag(after)+"\x00")
	}
	if within.Key >= within.End {
		return nil, nil
	}
	answer, err := l.gets(ctx, Op{Get: &Get{Interval: within, Limit: int64(n)}})
	if err != nil {
		return nil, err
	}
	tags := make([]Tag, 0, len(answer.Got[0]))
	for _, kv := range answer.Got[0] {
		t, err := l.decodeTag(kv)
		if err != nil {
			return nil, err
		}
		tags = append(tags, t)
	}
	return tags, nil
}

// DeleteTag deletes a tag's settings: no more IDs of it are leased. Its marks
// and eras stay, so that a tag of the same name goes on above them. Its errors
// are NotFound, Conflict and Unavailable.
func (l *Ledger) DeleteTag(ctx context.Context, name allocator.Tag, actor string) error {
	t, err := l.Tag(ctx, name)
	if err != nil {
		return err
	}
	answer, err := l.try(ctx, Txn{
		If:   []Cond{unchanged(t.kv)},
		Then: []Op{{Delete: t.kv.Key}, l.audit(actor, "delete tag", t.kv.Key, t.kv.Value, nil)},
	})
	if err == nil && answer.Succeeded {
		return nil
	}
	// Unknown, or not done: either way it may be gone by now, which was wanted.
	if _, checkErr := l.Tag(ctx, name); allocator.KindOf(checkErr) == allocator.NotFound {
		return nil
	}
	if err != nil {
		return err
	}
	return allocator.Errorf(allocator.Conflict, "tag %s was changed by somebody else just now", name)
}

// Marks returns the mark of a tag in each room that ever leased IDs of it.
func (l *Ledger) Marks(ctx context.Context, name allocator.Tag) (map[allocator.Room]Mark, error) {
	record, err := l.Refresh(ctx)
	if err != nil {
		return nil, err
	}
	ops := make([]Op, len(record.Ever))
	for i, room := range record.Ever {
		ops[i] = get(l.keys.mark(room, name))
	}
	answer, err := l.gets(ctx, ops...)
	if err != nil {
		return nil, err
	}
	marks := make(map[allocator.Room]Mark)
	for i, room := range record.Ever {
		if kv, ok := answer.one(i); ok {
			if marks[room], err = decodeMark(kv); err != nil {
				return nil, err
			}
		}
	}
	return marks, nil
}
