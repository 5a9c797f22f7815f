package sim_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/cryptotest"
	"testing/synctest"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/format"
	"github.com/march-id/march/allocator/ledger/admin"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/worker"
	"github.com/march-id/march/allocator/plan"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/console"
	"github.com/march-id/march/internal/access"
	"github.com/march-id/march/internal/programs"
	"github.com/march-id/march/internal/testcluster"
	"github.com/march-id/march/room"
	"github.com/march-id/march/room/tinyid"
)

// move is a column of the table.
type move struct {
	name string
	// to makes the layout that a migration leads to.
	to     func(l *allocator.Layout)
	atomic bool
	do     func(m *moves) // makes another kind of move
	// gone is a room that issues nothing more. If it is lost, it has no instances either.
	gone allocator.Room
	lost bool
	// formats of the cluster at first; 0 for the newest.
	formats int
	warm    time.Duration // before the move
	rest    time.Duration // after it, without calls
}

func span(lower, upper int64) allocator.Range { return allocator.Range{Lower: lower, Upper: upper} }

// allMoves are the columns. At first room a has [0, 400) of 1,000, room b [400, 800).
func allMoves() []move {
	b := func(lower, upper int64) func(*allocator.Layout) {
		return func(l *allocator.Layout) { l.Ranges["b"] = span(lower, upper) }
	}
	drain := func(l *allocator.Layout) { delete(l.Ranges, "b") }
	return []move{
		{name: "retract", to: b(400, 600)},
		{name: "expand", to: b(400, 1000)},
		{name: "shift", to: b(600, 1000)},
		{name: "switch", atomic: true, to: func(l *allocator.Layout) {
			l.Ranges["a"], l.Ranges["b"] = l.Ranges["b"], l.Ranges["a"]
		}},
		{name: "boundary", to: func(l *allocator.Layout) {
			l.Boundary, l.Ranges["a"], l.Ranges["b"] = 2000, span(0, 800), span(800, 1600)
		}},
		{name: "new room", to: func(l *allocator.Layout) { l.Ranges["c"] = span(800, 1000) }},
		{name: "drained", to: drain, gone: "b"},
		{name: "lost", to: drain, gone: "b", lost: true, do: func(m *moves) {
			for _, s := range m.slots {
				if s.room == "b" {
					s.stayDown(time.Hour)
					s.running().crash()
				}
			}
			m.sleep(nil, 5*time.Second, 0)
			m.migrate(drain, false, func() {
				m.await("a migration that waits for the lost room", func() bool {
					_, err := m.console().ContinueMigration(m.ctx, &marchv1.ContinueMigrationRequest{
						Without: []string{"b/b1", "b/b2"}})
					return err == nil || m.migrationsEnded()
				})
			})
		}},
		{name: "reserve", to: func(l *allocator.Layout) {
			l.Reserved = map[allocator.Room]allocator.Range{reserved: span(800, 1000)}
		}},
		{name: "abort", do: func(m *moves) {
			from := m.layout()
			m.migrate(func(l *allocator.Layout) { l.Ranges["a"], l.Ranges["b"] = span(0, 200), span(200, 800) }, false,
				func() {
					m.await("the first move", func() bool { return m.layout().Version > from.Version })
					_, err := m.console().AbortMigration(m.ctx, &marchv1.AbortMigrationRequest{})
					m.must(err)
				})
			if now := m.layout(); !now.Equal(from) || now.Version == from.Version {
				m.Errorf("after an abort of %s: %s", text(from), text(now))
			}
		}},
		{name: "recover", warm: 15 * time.Second, do: func(m *moves) { m.recoverWith(nobody) }},
		{name: "left out", warm: 15 * time.Second, rest: record.LongestWindow + 20*time.Second,
			do: func(m *moves) { m.recoverWith(hangs) }},
		{name: "upgrade", formats: 1, do: func(m *moves) {
			for _, s := range m.slots {
				m.replace(s)
			}
			_, err := m.console().UpgradeCluster(m.ctx, &marchv1.UpgradeClusterRequest{})
			m.must(err)
			for i := range m.rows {
				if f := &m.rows[i]; m.refused[f.tag] {
					m.create(f)
				}
			}
		}},
	}
}

// moves is a world in which all features are in use while one move is made.
type moves struct {
	*world

	t        *testing.T
	ctx      context.Context //nolint:containedctx // of one test
	move     move
	rows     []feature
	settings map[allocator.Tag]record.TagSettings
	refused  map[allocator.Tag]bool // the features that refused the move
	unpinned atomic.Bool

	overQuota atomic.Int64 // calls that a quota refused
	rests     atomic.Bool  // no caller calls

	gate   *access.Gate
	tokens *tinyid.Tokens

	began, over time.Time // the move
	acted       time.Time // when the operator moved a home, say
	made        struct {
		sync.Mutex
		calls    map[allocator.Tag]map[allocator.Room][]made
		ended    map[allocator.Tag]bool
		problems map[allocator.Tag][]string
	}
}

// made is a call that was made at a room.
type made struct {
	began, done time.Time
	err         error
}

const patience = 400 * time.Millisecond // of a caller with one instance

func (m *moves) run(seed uint64, journals string) {
	// The real clock must be ahead, by which package testcluster knows a bubble: there it has a network of pipes.
	time.Sleep(time.Until(time.Date(2026, 2, 1, 0, 0, 0, 0, time.UTC)))
	m.world = newWorldNow(seed, nil, journals, nil)
	m.fates, m.slow, m.strict, m.required = nil, 0, true, false
	m.journals, m.timed, m.wild, m.mirrorless, m.hold = journals, false, false, false, 10*time.Second
	m.roles = m.move.formats == 0 // until an upgrade they are others
	m.rooms, m.tags = []allocator.Room{"a", "b", "c"}, nil
	m.ctx, m.fit = context.Background(), m.fits
	m.openGates(journals)
	m.made.calls = make(map[allocator.Tag]map[allocator.Room][]made)
	m.made.ended, m.made.problems = make(map[allocator.Tag]bool), make(map[allocator.Tag][]string)
	m.settings, m.refused = make(map[allocator.Tag]record.TagSettings), make(map[allocator.Tag]bool)
	m.rows = features()
	for i := range m.rows {
		f := &m.rows[i]
		s := record.DefaultTag()
		if s.MinStep, s.MaxStep = 50, 5000; f.set != nil {
			f.set(&s)
		}
		if m.settings[f.tag] = s; s.Time != nil {
			m.mu.ticks[f.tag] = make(map[int64]timedID)
		} else {
			m.mu.issued[f.tag], m.tags = make(map[int64]int), append(m.tags, f.tag)
		}
		m.made.calls[f.tag] = make(map[allocator.Room][]made)
	}
	m.makeCluster(m.ctx, allocator.Layout{Boundary: 1000, Ranges: map[allocator.Room]allocator.Range{
		"a": span(0, 400), "b": span(400, 800)}}, admin.Config{Formats: m.move.formats})
	for i := range m.rows {
		m.create(&m.rows[i])
	}
	m.keepConsoles()
	m.keepRoom("a", 2)
	m.keepRoom("b", 2)
	if m.move.name == "new room" {
		m.keepRoom("c", 2)
	}
	m.sleep(nil, max(m.move.warm, 4*time.Second), 0)
	m.began = time.Now()
	for _, f := range m.rows {
		if f.during != nil {
			f.during(m)
		}
	}
	if m.move.do != nil {
		m.move.do(m)
	} else {
		m.migrate(m.move.to, m.move.atomic, nil)
	}
	m.over = time.Now()
	m.sleep(nil, 6*time.Second, 0)
	if m.move.rest > 0 && programs.All() {
		m.rests.Store(true)
		m.sleep(nil, m.move.rest, 0)
		m.rests.Store(false)
		m.sleep(nil, 3*time.Second, 0)
	}
	m.rests.Store(true) // the end cuts no call off
	m.sleep(nil, time.Second, 0)
	m.admin = admin.New(m.fresh(), admin.DefaultConfig())
	for _, f := range m.rows {
		if f.after != nil {
			f.after(m)
		}
	}
	m.healed.Store(true)
	close(m.heal)
	close(m.end)
	m.actors.Wait()
	m.mem.Arrive()
	m.checkAll()
}

// openGates makes the policy with quotas, and the tokens of TinyId.
func (m *moves) openGates(dir string) {
	write := func(name, text string) string {
		path := filepath.Join(filepath.Dir(dir), name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			m.Errorf("%v", err)
		}
		return path
	}
	var err error
	m.gate, err = access.New(access.Config{Policy: write("policy.yaml", fmt.Sprintf(`grants:
  - subjects: [anonymous]
    tags: [bounds]
    roles: [issuer]
    quotas: {tag_ids_per_second: %d}
  - subjects: [anonymous]
    tags: [redis, leaf, tinyid, cosid]
    roles: [issuer]
`, quota))})
	m.must(err)
	m.tokens, err = tinyid.OpenTokens(write("tokens", "secret *\n"), nil)
	m.must(err)
}

// fits opens the doors of an instance.
func (m *moves) fits(cfg *room.Config, l *link) {
	l.clock = m.wallClock(0)
	cfg.Access, cfg.OpaqueKeys = m.gate, []format.Key{secret()}
	cfg.Doors = room.Doors{Redis: testcluster.Listen(m.t, ""), Leaf: testcluster.Listen(m.t, ""),
		TinyID: testcluster.Listen(m.t, ""), CosID: testcluster.Listen(m.t, ""), TinyIDTokens: m.tokens}
	if cfg.Room == "b" && !m.unpinned.Load() {
		cfg.Worker = worker.PinTo(pin + int64(cfg.Name[1]-'1'))
	}
}

// create creates a feature's tag and its callers, unless the cluster refuses the tag until it is upgraded.
func (m *moves) create(f *feature) {
	_, err := m.admin.CreateTag(m.ctx, f.tag, m.settings[f.tag], "simulation")
	if m.bars(f, err) && !m.refused[f.tag] {
		m.refused[f.tag] = true
		return
	}
	m.must(err)
	for _, in := range m.rooms {
		d, lane := m.dice(fmt.Sprint("caller of ", f.tag, " in ", in)), m.lane()
		m.actors.Go(func() { m.calls(f, in, d, lane) })
	}
}

// bars reports whether an error is that by which a feature refuses a move.
func (m *moves) bars(f *feature, err error) bool {
	return f.bars != "" && allocator.KindOf(err) == allocator.Refused &&
		regexp.MustCompile(f.bars).MatchString(err.Error())
}

// calls calls a room for IDs until the end, the next of its instances each time. A call that the one does not answer
// goes to another one.
func (m *moves) calls(f *feature, in allocator.Room, d dice, lane int) {
	for n := 0; m.sleep(m.end, d.between(100*time.Millisecond, 500*time.Millisecond), lane); n++ {
		if m.rests.Load() {
			continue
		}
		var open []*process
		for _, p := range m.serving() {
			if p.in == in && (f.at == "" || f.at == p.name) {
				open = append(open, p)
			}
		}
		if len(open) == 0 {
			continue
		}
		one := made{began: time.Now()}
		for try := range open {
			p := open[(n+try)%len(open)]
			a := answered{by: p, tag: f.tag, began: time.Now()}
			ctx, cancel := context.WithTimeout(m.ctx, patience)
			one.err = m.one(ctx, f, p, &a)
			cancel()
			if one.err == nil || errors.Is(one.err, errOverQuota) {
				break
			}
			if !m.expected(one.err) && !errors.Is(one.err, context.DeadlineExceeded) {
				m.problem(f.tag, "%s: %v", p.id, one.err)
			}
		}
		one.done = time.Now()
		m.made.Lock()
		if !m.made.ended[f.tag] && !errors.Is(one.err, errOverQuota) {
			m.made.calls[f.tag][in] = append(m.made.calls[f.tag][in], one)
		}
		m.made.Unlock()
	}
}

// one makes one call at an instance, and notes its IDs.
func (m *moves) one(ctx context.Context, f *feature, p *process, a *answered) (err error) {
	if f.call != nil {
		err = f.call(ctx, m, p, a)
	} else {
		var r *marchv1.NextResponse
		r, err = p.room.Next(ctx, &marchv1.NextRequest{Tag: string(f.tag)})
		_ = a.one(r.GetId(), nil)
	}
	if err != nil || m.settings[f.tag].Time != nil {
		return err
	}
	a.at = time.Now()
	a.done = a.at
	m.passedOn(a)
	m.note(*a)
	return nil
}

// migrate makes a migration. Where a feature refuses it, the operator does what it asks for. meanwhile may be nil.
func (m *moves) migrate(to func(*allocator.Layout), atomic bool, meanwhile func()) {
	for range 60 {
		from := m.layout()
		target := allocator.Layout{Boundary: from.Boundary, Ranges: make(map[allocator.Room]allocator.Range)}
		for in, has := range from.Ranges {
			target.Ranges[in] = has
		}
		to(&target)
		planned, err := plan.New(from, target, atomic)
		m.must(err)
		if err = m.apply(m.ctx, m.console(), planned); err == nil {
			if meanwhile != nil {
				meanwhile()
			}
			m.await("the migration's end", m.migrationsEnded)
			return
		}
		at := slices.IndexFunc(m.rows, func(f feature) bool { return m.bars(&f, err) })
		if at < 0 {
			m.Errorf("migrate: %v", err)
			return
		}
		if f := &m.rows[at]; !m.refused[f.tag] {
			m.refused[f.tag] = true
			f.unbar(m)
			m.acted = time.Now()
		}
		m.sleep(nil, 2*time.Second, 0) // what a console has read of the tags may be a minute old
	}
	m.Errorf("the migration was refused for two minutes")
}

// recoverWith goes back to a backup, and recovers. Somebody may hang.
func (m *moves) recoverWith(f fell) {
	m.backUp(m.first)
	m.sleep(nil, 2*time.Second, 0)
	var out []*process
	if f == hangs {
		out = []*process{m.slotOf("a2").running()}
		out[0].link.stall(time.Hour)
		m.sleep(nil, time.Second, 0)
	}
	m.restore(m.first)
	m.sleep(nil, 2*time.Second, 0)
	cell{fell: f, mirrors: true}.recovers(m.t, m.world, out)
	for _, p := range out {
		p.link.stall(time.Second)
	}
	m.acted = time.Now()
}

func (m *moves) console() *console.Server { return m.consoles[0].running().console }

func (m *moves) layout() allocator.Layout {
	stored, err := m.admin.Ledger.Refresh(m.ctx)
	m.must(err)
	return stored.Layout
}

func (m *moves) marks(tag allocator.Tag) map[allocator.Room]record.Mark {
	_, marks := m.tag(tag)
	return marks
}

func (m *moves) update(tag allocator.Tag, change func(*record.TagSettings)) {
	_, err := m.admin.UpdateTag(m.ctx, tag, func(s *record.TagSettings) error {
		change(s)
		return nil
	}, "simulation")
	m.must(err)
}

func (m *moves) must(err error) {
	if err != nil {
		m.Errorf("%v", err)
	}
}

func (m *moves) await(what string, so func() bool) {
	for range 1200 {
		if so() {
			return
		}
		m.sleep(nil, 50*time.Millisecond, 0)
	}
	m.Errorf("not within a minute: %s", what)
}

// replace stops an instance, and waits for the next process of its name.
func (m *moves) replace(s *slot) {
	p := s.running()
	p.stop()
	m.await("the next process of "+s.name, func() bool {
		now := s.running()
		return now != nil && now != p && now.runs()
	})
}

func (m *moves) slotOf(name string) *slot {
	return m.slots[slices.IndexFunc(m.slots, func(s *slot) bool { return s.name == name })]
}

// serving returns the instances that serve.
func (m *moves) serving() (all []*process) {
	for _, s := range m.slots {
		if p := s.running(); p != nil && p.runs() {
			all = append(all, p)
		}
	}
	return all
}

// issuing returns those that issue after the move.
func (m *moves) issuing() []*process {
	return slices.DeleteFunc(m.serving(), func(p *process) bool { return p.in == m.move.gone })
}

// ends ends the calls for a tag.
func (m *moves) ends(tag allocator.Tag) {
	m.made.Lock()
	defer m.made.Unlock()
	m.made.ended[tag] = true
}

func (m *moves) problem(tag allocator.Tag, format string, args ...any) {
	m.made.Lock()
	defer m.made.Unlock()
	if all := m.made.problems[tag]; len(all) < 5 {
		m.made.problems[tag] = append(all, fmt.Sprintf(format, args...))
	}
}

// answeredSince returns the calls for a tag that began after a time.
func (m *moves) answeredSince(tag allocator.Tag, since time.Time) (all []answered) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, a := range m.mu.calls {
		if a.tag == tag && a.began.After(since) {
			all = append(all, a)
		}
	}
	return all
}

// soon is how long a call takes at most that notices nothing of a move: one that is passed on, while a holder stops in
// good order, is tried again after up to a third of a second.
const soon = 500 * time.Millisecond

// stall returns the longest time since a move for which callers in a room got no ID, and when it was over; at all
// reports whether they got any in the end.
func stall(calls []made, since time.Time) (longest time.Duration, over time.Time, atAll bool) {
	var began time.Time
	for _, c := range calls {
		if c.done.Before(since) {
			continue
		}
		if began.IsZero() {
			began = c.began
		}
		if took := c.done.Sub(began); took > longest {
			longest, over = took, c.done
		}
		if atAll = c.err == nil; atAll {
			began = time.Time{}
		}
	}
	return longest, over, atAll
}

// judge returns what callers see of a move that a word of the table does not say.
func (m *moves) judge(f feature, word string) (wrong []string) {
	wrong = m.made.problems[f.tag]
	rest, refused := strings.CutPrefix(word, "refused, ")
	if word = rest; m.refused[f.tag] != refused {
		wrong = append(wrong, fmt.Sprintf("the move was refused because of it: %v", m.refused[f.tag]))
	}
	most := soon
	within, err := time.ParseDuration(strings.NewReplacer(" ", "", "min", "m").Replace(word))
	if err == nil {
		most = within
	} else if !slices.Contains([]string{"on", "ends", "until"}, word) {
		wrong = append(wrong, "no word of the table's")
	}
	waited := false
	for _, in := range m.rooms {
		since, calls := m.began, m.made.calls[f.tag][in]
		gone := in == m.move.gone
		switch {
		case gone && m.move.lost, f.at != "" && in != "b", len(calls) == 0 && in == "c":
			continue
		case gone && word == "ends", in == "c":
			since = m.over.Add(2 * time.Second)
		}
		longest, over, atAll := stall(calls, since)
		waited = waited || longest > soon
		var last error
		if len(calls) > 0 {
			last = calls[len(calls)-1].err
		}
		switch {
		case len(calls) < 5:
			wrong = append(wrong, fmt.Sprintf("room %s was called %d times", in, len(calls)))
		case gone && word == "ends":
			if atAll || longest == 0 {
				wrong = append(wrong, fmt.Sprintf("room %s issues still", in))
			}
		case word == "until" && atAll && !over.After(m.acted.Add(4*time.Second)):
		case longest > most || !atAll:
			wrong = append(wrong, fmt.Sprintf("in room %s callers got no ID for %v until %v after the move began; at "+
				"all: %v, %v", in, longest, over.Sub(m.began), atAll, last))
		}
	}
	if most > soon && !waited || word == "until" && !waited {
		wrong = append(wrong, "callers notice nothing")
	}
	return wrong
}

// TestMoves makes each move of the table in docs/proof.md once, in a cluster in which all features of the table are in
// use, and compares what callers see with the table.
func TestMoves(t *testing.T) {
	columns, rows := allMoves(), features()
	table := readTable(t, len(columns)+1)
	for col, one := range columns {
		if col+1 < len(table[0]) && table[0][col+1] != one.name {
			t.Errorf("column %d is %q; want %q", col+1, table[0][col+1], one.name)
		}
		t.Run(one.name, func(t *testing.T) {
			m := &moves{t: t, move: one}
			journals := journals(t)
			cryptotest.SetGlobalRandom(t, uint64(col))
			synctest.Test(t, func(t *testing.T) {
				m.t = t
				m.run(uint64(col), journals)
			})
			for _, problem := range m.mu.problems {
				t.Error(problem)
			}
			for i, f := range rows {
				t.Run(f.name, func(t *testing.T) {
					if i+1 >= len(table) || table[i+1][0] != f.name {
						t.Fatal("docs/proof.md has no such row here")
					}
					if one.rest > 0 && strings.HasSuffix(table[i+1][col+1], " min") {
						programs.OnlyInAll(t, "of the twenty minutes after a recover without an instance")
					}
					if wrong := m.judge(f, table[i+1][col+1]); len(wrong) > 0 {
						t.Errorf("%s: %s", table[i+1][col+1], strings.Join(wrong, "; "))
					}
				})
			}
		})
	}
	if len(table) != len(rows)+1 {
		t.Errorf("%d rows; want %d", len(table)-1, len(rows))
	}
}

// readTable returns the cells of the table of docs/proof.md whose first one is "feature".
func readTable(t *testing.T, width int) (table [][]string) {
	t.Helper()
	text, err := os.ReadFile("../../docs/proof.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "\n| feature |")
	for line := range strings.Lines("| feature |" + rest) {
		if !strings.HasPrefix(line, "|") {
			break
		}
		var cells []string
		for cell := range strings.SplitSeq(strings.Trim(strings.TrimSpace(line), "|"), "|") {
			cells = append(cells, strings.TrimSpace(cell))
		}
		if strings.HasPrefix(cells[0], "---") {
			continue
		}
		if len(cells) != width || slices.Contains(cells, "") {
			t.Fatalf("%d cells, or an empty one; want %d: %s", len(cells), width, line)
		}
		table = append(table, cells)
	}
	return table
}
