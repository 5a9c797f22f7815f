package ledger

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/march-id/march/allocator"
)

// VerifyReport is what Verify saw and what it found wrong.
type VerifyReport struct {
	Layouts   int64 // in the history
	Rooms     int64 // that ever were
	Tags      int64 // with settings
	Marks     int64
	Eras      int64 // that ended
	Instances int64 // registered

	Halt HaltRecord // zero while leasing is not halted

	Settings    ClusterSettings
	Unconfirmed []InstanceID // that lease nothing before their marks are confirmed

	Problems []string // the first MaxProblems
	More     int64    // problems besides those
}

// MaxProblems is how many problems a report holds.
const MaxProblems = 1000

// maxProblem bounds the text of one, in bytes: values may be quoted in it.
const maxProblem = 500

// VerifyProgress is how far Verify is.
type VerifyProgress struct {
	Tags, Marks, Eras int64  // so far
	At                string // all names below this were looked at
	Problems          int64
}

const (
	// verifyPage is how many keys of a room are read at once, and verifyKeys
	// how many of all rooms: a key and its value have 300 bytes.
	verifyPage = 1000
	verifyKeys = 16_000
)

// Verify reads a live cluster and checks what must hold in it: see DESIGN
// section 3. It holds a page of tags at a time, and all layouts. progress, if
// it is not nil, is called after each page. Where the cluster could not be read
// to its end, Verify returns an error and what was found until then.
//
// A cluster moves while it is read. The marks and eras of a tag are from one
// snapshot, and that snapshot shows the layout which they are checked against:
// the reading transaction compares the layout, and where it is another one, the
// history is read on and the page again. Different tags may be from different
// snapshots; nothing that is checked spans two tags.
func (l *Ledger) Verify(ctx context.Context, progress func(VerifyProgress)) (VerifyReport, error) {
	return l.verify(ctx, verifyPage, progress)
}

func (l *Ledger) verify(ctx context.Context, page int64, progress func(VerifyProgress)) (VerifyReport, error) {
	v := &verification{l: l, page: page, progress: progress, apart: make(map[allocator.Tag]bool)}
	v.checker.add = v.add
	err := v.run(ctx)
	if err != nil && ctx.Err() != nil {
		err = fmt.Errorf("verify: %w", ctx.Err())
	}
	v.report.Layouts, v.report.Rooms = int64(len(v.checker.layouts)), int64(len(v.checker.ever))
	return v.report, err
}

// verification is one run of Verify.
type verification struct {
	l        *Ledger
	page     int64
	progress func(VerifyProgress)
	report   VerifyReport
	checker  checker

	layout  KV   // the key, as the history was last read with it; no ModRevision: it is not there
	fresh   bool // whether layout was read
	newest  string
	reached string // all names below were looked at

	span span

	// apart holds tags that were checked by a transaction of their own, while
	// their eras are still ahead or spread over pages. See tags.
	apart map[allocator.Tag]bool
}

func (v *verification) add(format string, args ...any) {
	if len(v.report.Problems) == MaxProblems {
		v.report.More++
		return
	}
	text := fmt.Sprintf(format, args...)
	if len(text) > maxProblem {
		text = strings.ToValidUTF8(text[:maxProblem], "") + "..."
	}
	v.report.Problems = append(v.report.Problems, text)
}

func (v *verification) run(ctx context.Context) error {
	if err := v.l.attach(ctx); err != nil {
		return err
	}
	if err := v.history(ctx); err != nil {
		return err
	}
	if err := v.epoch(ctx); err != nil {
		return err
	}
	if err := v.tags(ctx); err != nil {
		return err
	}
	if err := v.instances(ctx); err != nil {
		return err
	}
	return v.strays(ctx)
}

// rooms returns those whose marks and eras are read. A transaction holds two
// operations for each; etcd takes 128.
func (v *verification) rooms() []allocator.Room {
	if len(v.checker.ever) > allocator.MaxRooms {
		return v.checker.ever[:allocator.MaxRooms] // the lists shrank, which was reported
	}
	return v.checker.ever
}

// underLayout reads gets in one snapshot that shows the layout up to which the
// history was read. It calls gets again, after reading the history on, when the
// layout has changed.
func (v *verification) underLayout(ctx context.Context, gets func(rooms []allocator.Room) []Op) (Answer, error) {
	for {
		unmoved := absent(v.l.keys.layout())
		if v.layout.ModRevision != 0 {
			unmoved = unchanged(v.layout)
		}
		answer, err := v.l.read(ctx, Txn{If: []Cond{unmoved}, Then: gets(v.rooms())})
		if err != nil || answer.Succeeded {
			return answer, err
		}
		if err := v.history(ctx); err != nil {
			return Answer{}, err
		}
	}
}

// tags checks all tags, chunk by chunk. A chunk is the names from lo up to hi,
// exclusive; names and the rest of keys are compared as strings.
//
// The trap: marks are in the order of tags, but eras in that of tags followed
// by a slash, which '-' and '.' come before. So tag a is before a-1 by its
// marks and after it by its eras, with a million tags in between perhaps. A tag
// is checked with its chunk where all of its keys are in it. The others begin
// the name that the chunk ends at, so there are at most as many as a name has
// bytes: each is read apart, in a transaction of its own, and remembered until
// its eras have passed.
func (v *verification) tags(ctx context.Context) error {
	for {
		ch, err := v.chunk(ctx, v.reached)
		if err != nil {
			return err
		}
		for _, name := range slices.Sorted(maps.Keys(ch.tags)) {
			switch within := string(name) >= ch.lo && (ch.hi == "" || string(name)+"0" <= ch.hi); { // '0' is the byte after '/'
			case within:
				v.checker.tag(*ch.tags[name])
			case v.apart[name]:
			default:
				v.apart[name] = true
				if err := v.one(ctx, name); err != nil {
					return err
				}
			}
		}
		v.reached = ch.hi
		maps.DeleteFunc(v.apart, func(name allocator.Tag, _ bool) bool { return string(name)+"0" <= ch.hi })
		if v.progress != nil {
			v.progress(VerifyProgress{
				Tags: v.report.Tags, Marks: v.report.Marks, Eras: v.report.Eras, At: ch.hi,
				Problems: int64(len(v.report.Problems)) + v.report.More,
			})
		}
		if ch.hi == "" {
			return nil
		}
	}
}

// chunk is what was read of the names from lo up to hi, exclusive; hi is empty
// for no bound.
type chunk struct {
	lo, hi string
	tags   map[allocator.Tag]*tagState
}

// chunk reads the next chunk. It ends where the first of the full pages does, or
// with the span.
func (v *verification) chunk(ctx context.Context, lo string) (*chunk, error) {
	k := v.l.keys
	var rooms []allocator.Room
	var limit int64
	bound := v.span.end(lo)
	upTo := func(prefix string) string {
		if bound == "" {
			return prefixEnd(prefix)
		}
		return prefix + bound
	}
	answer, err := v.underLayout(ctx, func(now []allocator.Room) []Op {
		rooms = now
		limit = max(1, min(v.page, verifyKeys/int64(2*len(rooms)+1)))
		ops := make([]Op, 0, 2*len(rooms)+1)
		for _, room := range rooms {
			ops = append(ops,
				page(k.marksOf(room)+lo, upTo(k.marksOf(room)), limit),
				page(k.erasOf(room)+lo, upTo(k.erasOf(room)), limit))
		}
		if len(ops) == 0 {
			ops = append(ops, get(k.layout())) // nothing to read, but a transaction has something
		}
		return ops
	})
	if err != nil {
		return nil, err
	}
	ch := &chunk{lo: lo, hi: bound, tags: make(map[allocator.Tag]*tagState)}
	most, common := 0, -1
	cut := func(kvs []KV, prefix string, limit int64) {
		most = max(most, len(kvs))
		if int64(len(kvs)) < limit {
			return
		}
		common = max(common, commonBytes(kvs[0].Key, kvs[len(kvs)-1].Key)-len(prefix))
		if end := kvs[len(kvs)-1].Key[len(prefix):] + "\x00"; ch.hi == "" || end < ch.hi {
			ch.hi = end
		}
	}
	for i, room := range rooms {
		cut(answer.Got[2*i], k.marksOf(room), limit)
		cut(answer.Got[2*i+1], k.erasOf(room), limit)
	}
	// Settings are read after the marks: newer ones never make a limit binding.
	end := prefixEnd(k.tags())
	if ch.hi != "" {
		end = k.tags() + ch.hi
	}
	settings, err := v.l.gets(ctx, page(k.tags()+lo, end, 2*v.page))
	if err != nil {
		return nil, err
	}
	cut(settings.Got[0], k.tags(), 2*v.page)
	v.span.read(most, int(limit), common)
	before := func(kvs []KV, prefix string) []KV {
		if ch.hi == "" {
			return kvs
		}
		n, _ := slices.BinarySearchFunc(kvs, prefix+ch.hi, func(kv KV, key string) int { return strings.Compare(kv.Key, key) })
		return kvs[:n]
	}
	for i, room := range rooms {
		marks, eras := before(answer.Got[2*i], k.marksOf(room)), before(answer.Got[2*i+1], k.erasOf(room))
		v.report.Marks += int64(len(marks))
		v.report.Eras += int64(len(eras))
		v.take(ch.tags, v.add, marks, eras)
	}
	found := before(settings.Got[0], k.tags())
	v.report.Tags += int64(len(found))
	v.takeSettings(ch.tags, v.add, found)
	return ch, nil
}

// one checks a tag by itself. What cannot be read of it was or will be reported
// by its chunk.
func (v *verification) one(ctx context.Context, name allocator.Tag) error {
	k := v.l.keys
	answer, err := v.underLayout(ctx, func(rooms []allocator.Room) []Op {
		ops := make([]Op, 0, 2*len(rooms))
		for _, room := range rooms {
			ops = append(ops, get(k.mark(room, name)), getPrefix(k.eras(room, name)))
		}
		return ops
	})
	if err != nil {
		return err
	}
	settings, err := v.l.gets(ctx, get(k.tag(name)))
	if err != nil {
		return err
	}
	silent := func(string, ...any) {}
	tags := make(map[allocator.Tag]*tagState)
	v.take(tags, silent, answer.Got...)
	v.takeSettings(tags, silent, settings.Got[0])
	if s, ok := tags[name]; ok {
		v.checker.tag(*s)
	}
	return nil
}

// stateOf returns the state of a tag, a new one perhaps.
func stateOf(tags map[allocator.Tag]*tagState, name allocator.Tag) *tagState {
	s, ok := tags[name]
	if !ok {
		s = &tagState{name: name, marks: make(map[allocator.Room]markState), eras: make(map[allocator.Room][]Era)}
		tags[name] = s
	}
	return s
}

// take adds marks and eras, in the order of keys, to the states of their tags.
func (v *verification) take(tags map[allocator.Tag]*tagState, add func(string, ...any), got ...[]KV) {
	for _, kvs := range got {
		for _, kv := range kvs {
			key, err := v.l.keys.parse(kv.Key)
			if err != nil {
				add("%v", err)
				continue
			}
			s := stateOf(tags, key.tag)
			if key.kind == "marks" {
				mark, err := decodeMark(kv)
				if err != nil {
					add("%v", err)
				}
				s.marks[key.room] = markState{Mark: mark, revision: kv.ModRevision, unread: err != nil}
				continue
			}
			era, err := decodeEra(kv)
			if err == nil && era.Version != key.version {
				err = fmt.Errorf("key %s: holds an era of version %d", kv.Key, era.Version)
			}
			if err != nil {
				add("%v", err)
				continue
			}
			s.eras[key.room] = append(s.eras[key.room], era)
		}
	}
}

// takeSettings adds settings to the states of their tags.
func (v *verification) takeSettings(tags map[allocator.Tag]*tagState, add func(string, ...any), kvs []KV) {
	for _, kv := range kvs {
		t, err := v.l.decodeTag(kv)
		if err != nil {
			add("%v", err)
			continue
		}
		stateOf(tags, t.Name).settings = &t
	}
}

// instances checks all registrations.
func (v *verification) instances(ctx context.Context) error {
	from, end := v.l.keys.registrations(""), prefixEnd(v.l.keys.registrations(""))
	for {
		answer, err := v.l.gets(ctx, page(from, end, v.page))
		if err != nil {
			return err
		}
		if err := v.history(ctx); err != nil { // after: so that it has the layouts that they report
			return err
		}
		for _, kv := range answer.Got[0] {
			v.report.Instances++
			from = kv.Key + "\x00"
			key, err := v.l.keys.parse(kv.Key)
			var r registrationValue
			if err = errors.Join(err, decode(kv, &r)); err != nil {
				v.add("%s", strings.ReplaceAll(err.Error(), "\n", "; "))
				continue
			}
			if r.Unconfirmed {
				v.report.Unconfirmed = append(v.report.Unconfirmed, Registration{Room: key.room, Name: key.instance}.ID())
			}
			v.checker.served(key.room, key.instance, r.Version)
		}
		if int64(len(answer.Got[0])) < v.page {
			return nil
		}
	}
}

// page reads up to n keys from key up to end.
func page(key, end string, n int64) Op {
	return Op{Get: &Get{Interval: Interval{Key: key, End: end}, Limit: n}}
}

// marksOf and erasOf are the prefixes of one room's marks and eras; the name
// of a tag follows.
func (k keys) marksOf(room allocator.Room) string { return string(k) + "marks/" + string(room) + "/" }
func (k keys) erasOf(room allocator.Room) string  { return string(k) + "eras/" + string(room) + "/" }
