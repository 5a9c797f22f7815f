package mirror

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"maps"
	"slices"
	"time"
	"unique"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
)

const (
	// MaxViews and maxEpochs bound the views and the epochs that are kept, the latest.
	MaxViews  = 64
	maxEpochs = 1000
	// maxProcesses bounds the processes that are kept. One that left or vanished goes first.
	maxProcesses = 10_000
)

// MostTags bounds of how many tags a mirror may be.
const MostTags = 100_000_000

// Question asks a mirror for what it learned after a tick, 0 for everything.
type Question struct {
	UUID  string // of the cluster
	After uint32
}

// Answer says whose mirror answered.
type Answer struct {
	Console, Process string
	Tick             uint32 // for Question.After of a later question to the same process
}

// View is what one connection to one member showed: everything, of one history.
type View struct {
	Epoch string    `json:"epoch"` // in force when it began
	From  int64     `json:"from"`  // the revision at which all marks and windows had been read,
	Began time.Time `json:"began"` // and the time then
	Reach int64     `json:"reach"` // the revision up to which all changes came,
	Until time.Time `json:"until"` // and the time of the last check of the connection
}

// Process is a process that was registered.
type Process struct {
	record.SeenInstance
	Beat time.Time `json:"beat,omitzero"` // of its last heartbeat, by its own clock
	// Vanished says that the registration went, or that another process replaced it.
	Vanished bool `json:"vanished,omitempty"`
	// Left says that the process was seen to write that it leaves, and that all marks and
	// windows had been read by then: the mirror has all that it leased.
	Left bool `json:"left,omitempty"`
}

// Mirror is what was seen of one cluster. It is not safe for concurrent use.
type Mirror struct {
	uuid    string
	maxTags int
	full    bool // there were more tags than maxTags: the mirror keeps nothing

	index map[allocator.Tag]int32 // of the slices below
	names []allocator.Tag
	bound []unique.Handle[bounds] // by tag; few differ
	// the tick of the last change of each tag's bound or skips
	boundAt []uint32
	skips   map[allocator.Tag]map[allocator.Room]int64 // of tags that have any
	rooms   map[allocator.Room]*marks

	rest rest
	tick uint32 // the present one: see Since

	shown map[string]bool // the processes that were registered since Attach

	// What the last view showed since its connection was last checked, and what permits something:
	unconfirmed struct {
		epoch string   // that began,
		left  []string // and incarnations that left
	}
}

// bounds are the largest max_step, the largest limit, mark, start or skip, and the largest start and skip that a
// tag was seen with, in all lives of its name; and its last Life, empty if its key went.
type bounds struct {
	Step, Limit, Least int64
	Life               string
}

// everyRoom stands for the skip of all rooms among those of rooms.
const everyRoom = allocator.Room("")

func boundsOf(t record.Tag) (bounds, map[allocator.Room]int64) {
	skips := t.Skips
	if t.Skip > 0 {
		skips = maps.Clone(skips)
		if skips == nil {
			skips = make(record.Skips)
		}
		skips[everyRoom] = t.Skip
	}
	// An operator may have lowered the limit below a skip.
	return bounds{t.LargestStep, max(t.Limit, t.LeastEver()), t.LeastEver(), t.Life()}, skips
}

// marks are a room's marks of all tags, by the tag's index. A tag without a mark has next 0.
type marks struct {
	next, total []int64
	at          []uint32 // the tick of the last change
}

// rest is all that a mirror has besides tags and marks: little, so each Part has all of it.
type rest struct {
	ClusterID uint64                             `json:"etcd_cluster_id,string"` // of the last view
	Epochs    []string                           `json:"epochs,omitempty"`       // in force, the last one last
	Total     int64                              `json:"margin_total,string"`    // the largest margin total,
	NotBefore int64                              `json:"not_before,string"`      // and not_before, of any epoch
	Layout    record.Layout                      `json:"layout,omitzero"`        // of the highest version,
	Latest    string                             `json:"latest,omitempty"`       // and its epoch
	Workers   map[record.WorkerIn]record.Worker  `json:"-"`
	Machines  map[record.WorkerIn]record.Machine `json:"-"`
	Processes map[string]*Process                `json:"-"` // by incarnation
	Views     []View                             `json:"views,omitempty"`
}

// New returns an empty mirror of at most so many tags.
func New(maxTags int) *Mirror {
	m := &Mirror{maxTags: maxTags, tick: 1}
	m.clear()
	return m
}

func (m *Mirror) clear() {
	m.index, m.names, m.bound, m.boundAt = make(map[allocator.Tag]int32), nil, nil, nil
	m.skips, m.rooms = make(map[allocator.Tag]map[allocator.Room]int64), make(map[allocator.Room]*marks)
	m.rest.Workers = make(map[record.WorkerIn]record.Worker)
	m.rest.Machines = make(map[record.WorkerIn]record.Machine)
	m.rest.Processes, m.shown = make(map[string]*Process), make(map[string]bool)
	m.rest.Views = nil
}

// UUID returns the uuid of the cluster, empty before the first Attach.
func (m *Mirror) UUID() string { return m.uuid }

// Full reports whether there were more tags than the mirror has room for. Then it has nothing.
func (m *Mirror) Full() bool { return m.full }

// Tags returns the number of tags.
func (m *Mirror) Tags() int { return len(m.names) }

// Views returns the views, the latest last.
func (m *Mirror) Views() []View { return m.rest.Views }

// Attach accepts a store by its identity, its epoch and its revision, or returns why it is another
// cluster's, or was restored. Another etcd cluster ID is accepted only with an epoch that the mirror
// never saw: a recover writes both together. Within an epoch revisions only grow: a view that began
// below the end of the one before would not have seen what a restore lost between the two.
func (m *Mirror) Attach(id record.Identity, epoch string, revision int64) error {
	last := View{}
	if n := len(m.rest.Views); n > 0 {
		last = m.rest.Views[n-1]
	}
	switch {
	case m.uuid != "" && m.uuid != id.UUID:
		return allocator.Errorf(allocator.Refused, "the mirror is of cluster %s; this is cluster %s", m.uuid, id.UUID)
	case m.rest.ClusterID != 0 && m.rest.ClusterID != id.ClusterID && slices.Contains(m.rest.Epochs, epoch):
		return allocator.Errorf(allocator.Refused,
			"the mirror saw epoch %s in etcd cluster %x; this is etcd cluster %x",
			epoch, m.rest.ClusterID, id.ClusterID)
	case last.Epoch == epoch && revision < last.Reach:
		return allocator.Errorf(allocator.WentBack,
			"etcd is at revision %d, and the mirror saw revision %d in this epoch: it went back in time; "+
				"see `march recover`", revision, last.Reach)
	}
	m.uuid, m.rest.ClusterID, m.shown = id.UUID, id.ClusterID, make(map[string]bool)
	return nil
}

// BeginView begins a view after all keys were read over one connection. In another epoch than the
// last view's, a process is registered no longer that was not read: a recover came in between, which
// asked the process, or went on without it. In the same epoch a restore may have come instead.
func (m *Mirror) BeginView(epoch string, revision int64, at time.Time) {
	if n := len(m.rest.Views); n > 0 && m.rest.Views[n-1].Epoch != epoch {
		for incarnation, p := range m.rest.Processes {
			p.Vanished = p.Vanished || !m.shown[incarnation]
		}
	}
	v := View{Epoch: epoch, From: revision, Began: at, Reach: revision, Until: at}
	m.rest.Views = append(m.rest.Views[max(len(m.rest.Views)+1-MaxViews, 0):], v)
	m.unconfirmed.epoch, m.unconfirmed.left = "", nil
}

// Reached says that the last view's connection still stands, and up to which revision all its
// changes came. So all that Saw was given since the view began came over this connection.
func (m *Mirror) Reached(revision int64, at time.Time) {
	if len(m.rest.Views) == 0 {
		return
	}
	v := &m.rest.Views[len(m.rest.Views)-1]
	v.Reach = max(v.Reach, revision)
	if at.After(v.Until) { // the clock may have been set back
		v.Until = at
	}
	v.Epoch = cmp.Or(m.unconfirmed.epoch, v.Epoch)
	for _, incarnation := range m.unconfirmed.left {
		if p := m.rest.Processes[incarnation]; p != nil {
			p.Left = true
		}
	}
	m.unconfirmed.epoch, m.unconfirmed.left = "", nil
}

// Saw takes a key as the store showed it, or its deletion, which has mod revision 0. whole says
// that all keys had been read over the same connection before. That a process left, and the
// view's epoch, count from the next Reached on. Keys that cannot be read teach nothing.
func (m *Mirror) Saw(keys record.Keys, kv store.KV, whole bool) {
	if m.full {
		return
	}
	if kv.ModRevision == 0 {
		switch key, _ := keys.Parse(kv.Key); key.Kind {
		case record.Registrations:
			m.vanish(record.NewInstanceID(key.Room, key.Instance), "")
		case record.Tags:
			m.forget(key.Tag)
		}
		return
	}
	key, value, err := keys.Read(kv)
	if err != nil {
		return
	}
	switch v := value.(type) {
	case record.Mark:
		m.raise(key.Room, key.Tag, v.Next, v.Total)
		m.reach(key.Tag)
	case record.Tag:
		b, skips := boundsOf(v)
		m.boundTag(v.Name, b, skips)
		m.reach(v.Name)
	case record.Worker:
		m.window(record.Lease{WorkerID: key.Worker, Worker: v})
	case record.Machine:
		m.machine(record.WorkerIn{Room: key.Room, WorkerID: key.Worker}, v)
	case record.Layout:
		m.layout(v)
	case record.Epoch:
		if m.epoch(v); whole {
			m.unconfirmed.epoch = cmp.Or(v.Epoch, m.unconfirmed.epoch)
		}
	case record.Instance:
		m.registered(keys, kv, whole)
	case record.Heartbeat:
		if p := m.rest.Processes[v.Incarnation]; p != nil && v.Time.After(p.Beat) {
			p.Beat = v.Time
		}
	}
}

// of returns the index of a tag, which it adds; false if there is no room for it.
func (m *Mirror) of(tag allocator.Tag) (int32, bool) {
	at, ok := m.index[tag]
	if ok {
		return at, true
	}
	if len(m.names) >= m.maxTags {
		m.full = true
		m.clear()
		return 0, false
	}
	at = int32(len(m.names))
	m.index[tag] = at
	m.names = append(m.names, tag)
	m.bound, m.boundAt = append(m.bound, unique.Make(bounds{})), append(m.boundAt, 0)
	return at, true
}

// raise raises a mark: each number for itself.
func (m *Mirror) raise(room allocator.Room, tag allocator.Tag, next, total int64) {
	at, ok := m.of(tag)
	if !ok {
		return
	}
	r := m.rooms[room]
	if r == nil {
		r = &marks{}
		m.rooms[room] = r
	}
	if n := len(m.names); len(r.next) < n {
		r.next = append(r.next, make([]int64, n-len(r.next))...)
		r.total = append(r.total, make([]int64, n-len(r.total))...)
		r.at = append(r.at, make([]uint32, n-len(r.at))...)
	}
	if next > r.next[at] || total > r.total[at] {
		r.next[at], r.total[at], r.at[at] = max(next, r.next[at]), max(total, r.total[at]), m.tick
		m.rest.Total = max(m.rest.Total, total) // a recover raises marks before it writes its epoch
	}
}

func (m *Mirror) boundTag(tag allocator.Tag, b bounds, skips map[allocator.Room]int64) {
	at, ok := m.of(tag)
	if !ok {
		return
	}
	was := m.bound[at].Value()
	if now := (bounds{max(was.Step, b.Step), max(was.Limit, b.Limit), max(was.Least, b.Least),
		cmp.Or(b.Life, was.Life)}); now != was {
		m.bound[at], m.boundAt[at] = unique.Make(now), m.tick
	}
	for room, to := range skips {
		if to <= m.skips[tag][room] {
			continue
		}
		if m.skips[tag] == nil {
			m.skips[tag] = make(map[allocator.Room]int64)
		}
		m.skips[tag][room], m.boundAt[at] = to, m.tick
	}
}

// reach raises a tag's limit to its marks in the store. A mark lies above the limit that the store
// shows if an operator lowered the limit since, or if a recover raised the mark after a backup from
// before the limit was raised.
func (m *Mirror) reach(tag allocator.Tag) {
	at, ok := m.index[tag]
	if !ok {
		return
	}
	b := m.bound[at].Value()
	if b.Limit == 0 { // its record was not read yet, or it has time-ordered IDs
		return
	}
	for _, r := range m.rooms {
		if int(at) < len(r.next) {
			b.Limit = max(b.Limit, r.next[at])
		}
	}
	m.boundTag(tag, b, nil)
}

// forget drops the life of a tag whose key went: a counter that was never leased, or a tombstone
// that an operator forgot.
func (m *Mirror) forget(tag allocator.Tag) {
	if at, ok := m.index[tag]; ok {
		b := m.bound[at].Value()
		b.Life = ""
		m.bound[at], m.boundAt[at] = unique.Make(b), m.tick
	}
}

func (m *Mirror) window(l record.Lease) {
	m.rest.Workers[l.In()] = m.rest.Workers[l.In()].Raised(l.Worker)
}

func (m *Mirror) machine(key record.WorkerIn, c record.Machine) {
	if was, known := m.rest.Machines[key]; !known || c.Last >= was.Last {
		m.rest.Machines[key] = c
	}
}

// layout takes a layout. Its version, its rooms and its extremes count from every history; its
// ranges only with the epoch in which they were in force, which is the last one that was seen.
func (m *Mirror) layout(v record.Layout) {
	was := m.rest.Layout
	if v.Layout.Version >= was.Layout.Version {
		m.rest.Layout = v
		if n := len(m.rest.Epochs); n > 0 {
			m.rest.Latest = m.rest.Epochs[n-1]
		}
	}
	l := &m.rest.Layout
	l.Ever = record.Union(record.Union(l.Ever, was.Ever), v.Ever)
	*l = l.After(was).After(v)
}

func (m *Mirror) epoch(e record.Epoch) {
	m.rest.Total, m.rest.NotBefore = max(m.rest.Total, e.MarginTotal), max(m.rest.NotBefore, e.NotBefore)
	if e.Epoch == "" || slices.Contains(m.rest.Epochs, e.Epoch) {
		return
	}
	m.rest.Epochs = append(m.rest.Epochs[max(len(m.rest.Epochs)+1-maxEpochs, 0):], e.Epoch)
}

// registered takes the processes that a registration names. Of one that leaves, and those that it
// covers, the mirror has all that they leased, if it has read the whole store.
func (m *Mirror) registered(keys record.Keys, kv store.KV, whole bool) {
	seen, err := keys.SeenIn(kv, "")
	if err != nil || len(seen) == 0 {
		return
	}
	m.vanish(seen[0].ID(), seen[len(seen)-1].Incarnation)
	for i, s := range seen {
		if s.Left != 0 && whole {
			m.unconfirmed.left = append(m.unconfirmed.left, s.Incarnation)
		}
		s.Left = 0 // a revision, which means nothing in another history
		p := m.rest.Processes[s.Incarnation]
		if p == nil {
			p = &Process{}
			m.rest.Processes[s.Incarnation] = p
		}
		current := i == len(seen)-1
		p.SeenInstance, p.Vanished = s, p.Vanished || !current
		if current {
			p.Vanished = false // a restore may show it again
			m.shown[s.Incarnation] = true
		}
	}
	m.boundProcesses()
}

// vanish notes that the processes of an instance, but one, are registered no longer. They may
// run: only a process that wrote that it leaves has left.
func (m *Mirror) vanish(id record.InstanceID, but string) {
	for incarnation, p := range m.rest.Processes {
		if incarnation != but && p.ID() == id {
			p.Vanished = true
		}
	}
}

func (m *Mirror) boundProcesses() {
	if len(m.rest.Processes) <= maxProcesses {
		return
	}
	first := slices.SortedFunc(maps.Keys(m.rest.Processes), func(a, b string) int {
		p, q := m.rest.Processes[a], m.rest.Processes[b]
		return cmp.Or(cmp.Compare(rank(p), rank(q)), p.Beat.Compare(q.Beat), cmp.Compare(a, b))
	})
	delete(m.rest.Processes, first[0])
}

// rank is lower the sooner a process may be forgotten.
func rank(p *Process) int {
	switch {
	case p.Left:
		return 0
	case p.Vanished:
		return 1
	}
	return 2
}

// Mark returns how far a mark was seen to reach, with the margin total; 0 for none.
func (m *Mirror) Mark(room allocator.Room, tag allocator.Tag) (next, total int64) {
	at, ok := m.index[tag]
	r := m.rooms[room]
	if !ok || r == nil || int(at) >= len(r.next) {
		return 0, 0
	}
	return r.next[at], r.total[at]
}

// Turn ends the present tick, and returns it: changes from now on have later ones.
func (m *Mirror) Turn() uint32 {
	m.tick++
	return m.tick - 1
}

// partMarks is how many marks, or tags, one Part has.
const partMarks = 10_000

// Part is a part of a mirror, as it is sent and stored. The last part of a report has Rest, with
// the views: a program that has only some of the parts has no view.
type Part struct {
	UUID  string     `json:"uuid"`
	Marks *RoomMarks `json:"marks,omitempty"`
	Tags  *TagBounds `json:"tags,omitempty"`
	Rest  *Rest      `json:"rest,omitempty"`
}

// RoomMarks are marks of one room, in slices of one length.
type RoomMarks struct {
	Room  allocator.Room  `json:"room"`
	Tags  []allocator.Tag `json:"tags"`
	Next  []int64         `json:"next"`
	Total []int64         `json:"total"`
}

// TagBounds are the bounds of tags, in slices of one length, and the skips of those that have any;
// that of all rooms under an empty name. Life has indexes of Lives.
type TagBounds struct {
	Tags  []allocator.Tag                            `json:"tags"`
	Step  []int64                                    `json:"step"`
	Limit []int64                                    `json:"limit"`
	Least []int64                                    `json:"least"`
	Life  []int                                      `json:"life"`
	Lives []string                                   `json:"lives"`
	Skips map[allocator.Tag]map[allocator.Room]int64 `json:"skips,omitempty"`
}

// at returns the bounds of the tag at an index.
func (t *TagBounds) at(i int) bounds {
	return bounds{t.Step[i], t.Limit[i], t.Least[i], t.Lives[t.Life[i]]}
}

// Rest is what a mirror has besides tags and marks.
type Rest struct {
	rest

	Workers   []record.Lease `json:"workers,omitempty"`
	Machines  []Machine      `json:"machines,omitempty"`
	Processes []Process      `json:"processes,omitempty"`
}

// Machine is a machine ID with its key.
type Machine struct {
	record.WorkerIn
	record.Machine
}

// Compare orders machine IDs by the time at which they were in use last.
func (c Machine) Compare(o Machine) int {
	return cmp.Or(cmp.Compare(c.Last, o.Last), cmp.Compare(c.Room, o.Room), cmp.Compare(c.Bits, o.Bits),
		cmp.Compare(c.Number, o.Number))
}

// Since yields the parts with all that changed after a tick, 0 for everything. Each access to
// the mirror is a call of with, which may lock it: the parts then hold at least what the mirror
// held when Since began, and the views are from then.
func (m *Mirror) Since(after uint32, with func(func())) iter.Seq[Part] {
	return func(yield func(Part) bool) {
		var last Part
		var rooms []allocator.Room
		with(func() {
			last = Part{UUID: m.uuid, Rest: m.sorted()}
			rooms = slices.Sorted(maps.Keys(m.rooms))
		})
		for _, room := range rooms {
			for from := 0; from >= 0; {
				var page *RoomMarks
				with(func() { page, from = m.marksPage(room, from, after) })
				if page != nil && !yield(Part{UUID: last.UUID, Marks: page}) {
					return
				}
			}
		}
		for from := 0; from >= 0; {
			var page *TagBounds
			with(func() { page, from = m.tagsPage(from, after) })
			if page != nil && !yield(Part{UUID: last.UUID, Tags: page}) {
				return
			}
		}
		yield(last)
	}
}

// marksPage returns marks of a room that changed after a tick, from an index on, and the index
// at which the next page begins; below 0 for none. The page is nil if it is empty.
func (m *Mirror) marksPage(room allocator.Room, from int, after uint32) (*RoomMarks, int) {
	r := m.rooms[room]
	if r == nil {
		return nil, -1
	}
	page := &RoomMarks{Room: room}
	for ; from < len(r.next) && len(page.Tags) < partMarks; from++ {
		if r.next[from] > 0 && r.at[from] > after {
			page.Tags, page.Next = append(page.Tags, m.names[from]), append(page.Next, r.next[from])
			page.Total = append(page.Total, r.total[from])
		}
	}
	if from >= len(r.next) {
		from = -1
	}
	if len(page.Tags) == 0 {
		page = nil
	}
	return page, from
}

// tagsPage is marksPage for the bounds of tags.
func (m *Mirror) tagsPage(from int, after uint32) (*TagBounds, int) {
	page := &TagBounds{Skips: make(map[allocator.Tag]map[allocator.Room]int64)}
	lives := make(map[string]int)
	for ; from < len(m.names) && len(page.Tags) < partMarks; from++ {
		b := m.bound[from].Value()
		if b == (bounds{}) || m.boundAt[from] <= after {
			continue
		}
		name := m.names[from]
		page.Tags, page.Step = append(page.Tags, name), append(page.Step, b.Step)
		page.Limit, page.Least = append(page.Limit, b.Limit), append(page.Least, b.Least)
		life, known := lives[b.Life]
		if !known {
			life = len(page.Lives)
			lives[b.Life], page.Lives = life, append(page.Lives, b.Life)
		}
		page.Life = append(page.Life, life)
		if skips := m.skips[name]; skips != nil {
			page.Skips[name] = maps.Clone(skips)
		}
	}
	if from >= len(m.names) {
		from = -1
	}
	if len(page.Tags) == 0 {
		page = nil
	}
	return page, from
}

// sorted returns the rest in an order that does not depend on maps. It shares nothing that
// changes with the mirror.
func (m *Mirror) sorted() *Rest {
	r := &Rest{rest: m.rest}
	r.Epochs, r.Views = slices.Clone(m.rest.Epochs), slices.Clone(m.rest.Views)
	for in, w := range m.rest.Workers {
		r.Workers = append(r.Workers, record.Lease{WorkerID: in.WorkerID, Worker: w})
	}
	record.SortLeases(r.Workers)
	for id, c := range m.rest.Machines {
		r.Machines = append(r.Machines, Machine{id, c})
	}
	slices.SortFunc(r.Machines, Machine.Compare)
	for _, incarnation := range slices.Sorted(maps.Keys(m.rest.Processes)) {
		r.Processes = append(r.Processes, *m.rest.Processes[incarnation])
	}
	return r
}

// Asked answers a question from a mirror that does not change any more.
func (m *Mirror) Asked(_ context.Context, q Question, use func(Part) error) (Answer, error) {
	if q.After != 0 {
		return Answer{Tick: q.After}, nil
	}
	for p := range m.Since(0, func(do func()) { do() }) {
		if err := use(p); err != nil {
			return Answer{}, err
		}
	}
	return Answer{Tick: m.tick}, nil
}

// Take adds a part of another mirror of the same cluster, or of its own file. It keeps the
// larger of each number. The views and the list of epochs are the part's, if own is set: those
// of another mirror say nothing about this one.
func (m *Mirror) Take(p Part, own bool) {
	if m.full {
		return
	}
	m.uuid = cmp.Or(m.uuid, p.UUID)
	if r := p.Marks; r != nil {
		for i, tag := range r.Tags {
			m.raise(r.Room, tag, r.Next[i], r.Total[i])
		}
	}
	if t := p.Tags; t != nil {
		for i, tag := range t.Tags {
			b := t.at(i)
			if at, known := m.index[tag]; known && !own && m.bound[at].Value().Life != "" {
				b.Life = "" // which one is the last is not known
			}
			m.boundTag(tag, b, t.Skips[tag])
		}
	}
	if p.Rest == nil {
		return
	}
	m.rest.Total = max(m.rest.Total, p.Rest.Total)
	m.rest.NotBefore = max(m.rest.NotBefore, p.Rest.NotBefore)
	for _, l := range p.Rest.Workers {
		m.window(l)
	}
	for _, c := range p.Rest.Machines {
		m.machine(c.WorkerIn, c.Machine)
	}
	for _, process := range p.Rest.Processes {
		if was := m.rest.Processes[process.Incarnation]; was == nil || own {
			m.rest.Processes[process.Incarnation] = &process
		} else {
			was.Left = was.Left || process.Left
		}
	}
	if own {
		m.rest.Epochs, m.rest.Views, m.rest.ClusterID = p.Rest.Epochs, p.Rest.Views, p.Rest.ClusterID
		m.rest.Layout, m.rest.Latest = p.Rest.Layout, p.Rest.Latest
	} else if p.Rest.Layout.Layout.Version != 0 {
		m.layout(p.Rest.Layout)
	}
}

// Validate checks the names and numbers of a part from outside. Its errors are Invalid.
func (p Part) Validate() error {
	if r := p.Marks; r != nil {
		if _, err := allocator.ParseRoom(string(r.Room)); err != nil {
			return err
		}
		if len(r.Next) != len(r.Tags) || len(r.Total) != len(r.Tags) {
			return allocator.Errorf(allocator.Invalid,
				"room %s: %d tags, %d marks, %d totals; allowed: as many of each",
				r.Room, len(r.Tags), len(r.Next), len(r.Total))
		}
		for i, tag := range r.Tags {
			if _, err := allocator.ParseTag(string(tag)); err != nil {
				return err
			}
			if r.Next[i] < 1 || r.Total[i] < 0 || r.Total[i] > record.MostMargin {
				return allocator.Errorf(allocator.Invalid, "mark %s/%s: next %d, margin total %d; "+
					"allowed: 1 or more, 0 to %d", r.Room, tag, r.Next[i], r.Total[i], int64(record.MostMargin))
			}
		}
	}
	if t := p.Tags; t != nil {
		if n := len(t.Tags); len(t.Step) != n || len(t.Limit) != n || len(t.Least) != n || len(t.Life) != n {
			return allocator.Errorf(allocator.Invalid, "%d tags, %d steps, %d limits, %d least IDs, %d lives; "+
				"allowed: as many of each", n, len(t.Step), len(t.Limit), len(t.Least), len(t.Life))
		}
		for i, tag := range t.Tags {
			if _, err := allocator.ParseTag(string(tag)); err != nil {
				return err
			}
			if t.Step[i] < 0 || t.Step[i] > allocator.LargestStep || t.Limit[i] < 0 || t.Least[i] < 0 {
				return allocator.Errorf(allocator.Invalid,
					"tag %s: largest step %d, limit %d, least ID %d; allowed: 0 to %d, 0 or more, 0 or more",
					tag, t.Step[i], t.Limit[i], t.Least[i], int64(allocator.LargestStep))
			}
			if t.Life[i] < 0 || t.Life[i] >= len(t.Lives) {
				return allocator.Errorf(allocator.Invalid, "tag %s: life %d; allowed: 0 to %d", tag, t.Life[i],
					len(t.Lives)-1)
			}
		}
	}
	if p.Rest != nil {
		return p.Rest.validate()
	}
	return nil
}

func (r *Rest) validate() error {
	if r.Total < 0 || r.Total > record.MostMargin || r.NotBefore < 0 {
		return allocator.Errorf(allocator.Invalid, "margin total %d, not before %d; allowed: 0 to %d, 0 or more",
			r.Total, r.NotBefore, int64(record.MostMargin))
	}
	for _, p := range r.Processes {
		if _, err := allocator.ParseRoom(string(p.Room)); err != nil {
			return err
		}
		if _, err := allocator.ParseInstance(string(p.Name)); err != nil {
			return err
		}
	}
	if err := record.ValidateLeases(r.Workers); err != nil {
		return err
	}
	for _, c := range r.Machines {
		err := c.Validate()
		if c.Room != "" && err == nil {
			_, err = allocator.ParseRoom(string(c.Room))
		}
		if err == nil && !c.Valid() {
			err = allocator.Errorf(allocator.Invalid, "there is no such number")
		}
		if err != nil {
			return fmt.Errorf("machine %v: %w", c.WorkerID, err)
		}
	}
	if r.Layout.Layout.Version != 0 {
		if err := r.Layout.Validate(); err != nil {
			return err
		}
	}
	for _, v := range r.Views {
		if v.From < 1 || v.Reach < v.From || v.Until.Before(v.Began) || v.Epoch == "" {
			return allocator.Errorf(allocator.Invalid, "view of epoch %q: revisions %d to %d, %v to %v; "+
				"allowed: an epoch, and an end that is not before the beginning", v.Epoch, v.From, v.Reach,
				v.Began, v.Until)
		}
	}
	return nil
}
