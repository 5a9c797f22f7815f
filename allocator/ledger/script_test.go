package ledger_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/hashicorp/go-hclog"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/machine"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/allocator/ledger/worker"
	"github.com/march-id/march/internal/programs"
	"github.com/march-id/march/internal/testcluster/memcluster"
)

// TestScripts runs the protocol as text: commands, and what they answered where that is more than "ok". Each file has
// clusters of its own, and a bubble of testing/synctest: its clocks stand still unless a command has time pass.
// `go test . -run TestScripts -rewrite` writes the answers anew. The commands are those of verbs.
func TestScripts(t *testing.T) { runScripts(t, false) }

// TestScriptsOverEtcd runs them over a real etcd, which takes minutes: the answers must be the same.
func TestScriptsOverEtcd(t *testing.T) {
	programs.OnlyInAll(t, "of the protocol's scripts over a real etcd")
	runScripts(t, true)
}

func runScripts(t *testing.T, overEtcd bool) {
	t.Parallel()
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		s := &script{}
		if overEtcd {
			s.outside = ledgertest.NewOutside(t)
		}
		synctest.Test(t, func(t *testing.T) {
			defer func() { s.end() }()
			datadriven.RunTest(t, path, s.run)
		})
	})
}

// verb is a command of the scripts.
type verb struct {
	usage string // begins with its name
	does  string
	do    func(*script, args) (string, error)
}

// args are the words after a command's name. An option is a word, or key=value.
type args []string

func (a args) has(word string) bool { return slices.Contains(a, word) }

// value returns the value of an option, empty if it is not there.
func (a args) value(key string) string {
	for _, word := range a {
		if value, is := strings.CutPrefix(word, key+"="); is {
			return value
		}
	}
	return ""
}

func (a args) list(key string) []string {
	return strings.FieldsFunc(a.value(key), func(r rune) bool { return r == ',' })
}

// ids returns the instances that an option lists.
func (a args) ids(key string) (all []record.InstanceID) {
	for _, id := range a.list(key) {
		all = append(all, record.InstanceID(id))
	}
	return all
}

// rest returns the words from the i-th on as one text.
func (a args) rest(i int) string { return strings.Join(a[i:], " ") }

// tag returns the i-th word as a tag; t without it.
func (a args) tag(i int) allocator.Tag {
	if len(a) <= i {
		return "t"
	}
	return allocator.Tag(a[i])
}

func number(text string) int64 {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		panic(err)
	}
	return n
}

func duration(text string) time.Duration {
	d, err := time.ParseDuration(text)
	if err != nil {
		panic(err)
	}
	return d
}

// script is the state of one file.
type script struct {
	t         *testing.T
	c         *cluster
	dir       string               // of journals
	live      map[string]*scripted // by their handles
	lives     map[string]int
	names     map[string]string // of incarnations
	backups   map[string]int64
	nonce     string // of the last question
	meanwhile meanwhile
	said      []string          // by commands meanwhile
	ofStart   args              // the fate of a transaction of the next process
	spoilt    map[string][]byte // values before the first put or drop
	began     time.Time         // what clocks showed at first
	offset    time.Duration     // of them from the bubble's clock
	timeless  bool              // see verbs
	uuid      string            // of the configuration
	mirrors   map[string]*seen
	consoles  map[string]*ledger.Ledger
	by        *ledger.Ledger             // of the console that does the command, nil for none
	workers   map[record.WorkerID]string // those with a random number, by the names that they were taken by
	fates     []expected                 // of transactions
	elsewhere *atomic.Bool               // the answer that comes now is of another connection

	mu      sync.Mutex
	written []store.KV     // registrations since the last command
	asked   map[string]int // how often the last recover asked an address

	migration record.Migration
	noted     record.Instance
	reports   *ledger.State       // what was read when it started
	outside   *ledgertest.Outside // has a real etcd do all transactions, outside the bubble; nil for none
	stop      func()              // it; nil for none
}

// meanwhile are commands while a process writes a key, or reads one: after that, or before it so many times.
type meanwhile struct {
	key      string
	commands []string
	before   int
}

// during has a process do commands meanwhile.
func (s *script) during(m meanwhile) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.meanwhile = m
}

// expected is a fate that a transaction must meet.
type expected struct {
	what  string
	met   *int
	times int
}

// scripted is a running process.
type scripted struct {
	*process

	handle   string
	began    time.Time
	ahead    time.Duration // of its clock
	callers  int64         // see worker.Config
	pinned   time.Duration
	agrees   bool
	workers  *worker.Workers
	taken    map[string]*worker.Worker
	machines *machine.Machines
	watches  bool
	rests    map[allocator.Tag]*ledger.Rest // what it holds
	tenures  map[allocator.Tag]*ledger.Tenure
	stop     func() error // what it does by itself, and returns the error of that; nil for none

	mu    sync.Mutex
	notes []string // what the process reported since the last command
}

// logged notes lines of a log.
type logged struct{ p *scripted }

func (l logged) Write(line []byte) (int, error) {
	l.p.note("logs " + strings.TrimSpace(string(line)))
	return len(line), nil
}

func (p *scripted) note(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.notes = append(p.notes, text)
}

func (s *script) end() {
	for _, p := range s.live {
		if err := p.end(); err != nil {
			s.t.Errorf("the end of %s: %v", p.handle, err)
		}
	}
	for _, m := range s.mirrors {
		if m.stop != nil {
			m.stop()
		}
	}
	if s.stop != nil {
		s.stop()
	}
	if m := s.meanwhile; len(m.commands) > 0 && m.commands[0] != "" {
		s.t.Errorf("nothing met %s, for %q", m.key, m.commands)
	}
	for _, f := range s.fates {
		if *f.met < f.times {
			s.t.Errorf("%d transactions met the fate %s", *f.met, f.what)
		}
	}
}

func (p *scripted) end() (err error) {
	if p.stop != nil {
		err = p.stop()
		p.stop = nil
	}
	return errors.Join(err, p.Close())
}

// run answers each line of a block, where the answer is more than "ok".
func (s *script) run(t *testing.T, d *datadriven.TestData) string {
	s.t = t
	var out strings.Builder
	for _, line := range strings.Split(d.Input, "\n") {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		said := s.do(line)
		synctest.Wait()
		s.mu.Lock()
		written := s.written
		s.written = nil
		s.mu.Unlock()
		for _, p := range s.live {
			if p.watches && len(written) > 0 {
				p.Watched(written)
			}
		}
		var notes []string
		for _, said := range s.said {
			if said != "" {
				notes = append(notes, "\n  meanwhile: "+said)
			}
		}
		s.said = nil
		for _, p := range s.live {
			p.mu.Lock()
			for _, note := range p.notes {
				notes = append(notes, "\n  "+p.handle+" "+note)
			}
			p.notes = nil
			p.mu.Unlock()
		}
		slices.Sort(notes)
		if said != "" {
			line += ": " + said
		}
		if said != "" || len(notes) > 0 {
			fmt.Fprintln(&out, s.plain(line+strings.Join(notes, "")))
		}
	}
	return out.String()
}

// do runs one command.
func (s *script) do(line string) string {
	words := strings.Fields(line)
	if words[0] == "cluster" {
		s.begin(words[1:])
		return ""
	}
	s.c.TB = s.t
	l := s.by
	if l == nil {
		l = ledgertest.Open(s.t, s.c.Mem.Open(), s.config) // which remembers nothing
	}
	s.c.Admin = manage(l)
	var all []string
	for _, v := range verbs {
		all = append(all, v.usage+": "+v.does)
		if name, _, _ := strings.Cut(v.usage, " "); name != words[0] {
			continue
		}
		said, err := v.do(s, words[1:])
		if err != nil {
			said = failure(err)
		}
		return said
	}
	s.t.Fatalf("there is no command %s; there are\n%s", words[0], strings.Join(all, "\n"))
	return ""
}

// failure returns an error with its Kind.
func failure(err error) string { return fmt.Sprint(allocator.KindOf(err)) + ": " + err.Error() }

// begin makes a new cluster.
func (s *script) begin(a args) {
	s.end()
	formats := record.Formats
	if text := a.value("formats"); text != "" {
		formats, a = int(number(text)), a[1:]
	}
	*s = script{t: s.t, outside: s.outside, elsewhere: new(atomic.Bool), dir: s.t.TempDir(),
		live:  map[string]*scripted{},
		lives: map[string]int{}, names: map[string]string{}, backups: map[string]int64{}, spoilt: map[string][]byte{},
		mirrors: map[string]*seen{}, consoles: map[string]*ledger.Ledger{}, workers: map[record.WorkerID]string{},
		began: time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)}
	s.offset = time.Until(s.began)
	mem := ledgertest.NewFake(s.t)
	if s.outside != nil {
		s.stop = mem.Over(s.outside)
	}
	s.c = &cluster{memcluster.Over(s.t, mem, a.rest(0), formats, s.config)}
}

// start starts a process; an earlier one of its handle ends.
func (s *script) start(a args) (string, error) {
	room, name, _ := strings.Cut(a[0], "/")
	handle := a[0]
	if as := a.value("as"); as != "" {
		handle = as
	}
	if was := s.live[handle]; was != nil {
		delete(s.live, handle)
		if err := was.end(); err != nil {
			return "", err
		}
	}
	s.lives[handle]++
	p := &scripted{process: s.c.process(), handle: handle, began: s.now(), agrees: a.has("agree"),
		taken: map[string]*worker.Worker{}, rests: map[allocator.Tag]*ledger.Rest{},
		tenures: map[allocator.Tag]*ledger.Tenure{}}
	if ahead := a.value("ahead"); ahead != "" {
		p.ahead = duration(ahead)
	}
	if callers := a.value("callers"); callers != "" {
		p.callers = number(callers)
	}
	if window := a.value("pinned-window"); window != "" {
		p.pinned = duration(window)
	}
	var etcd store.Store = registrations{p.Conn, s}
	if a.has("role") || a.has("old-role") {
		role := record.Keys(prefix).RoomRole(allocator.Room(room), false)
		role.Rights = slices.DeleteFunc(role.Rights, func(r store.Right) bool {
			return a.has("old-role") && strings.HasPrefix(r.Key, prefix+"kept/")
		})
		etcd = ledgertest.WithRole(etcd, role)
	}
	p.Ledger = ledgertest.Open(s.t, etcd, func(cfg *ledger.Config) {
		cfg.Now, cfg.UUID = func() time.Time { return s.now().Add(p.ahead) }, s.uuid
		if level := hclog.LevelFromString(a.value("logs")); a.has("logs") || level != hclog.NoLevel {
			cfg.Logger = hclog.New(&hclog.LoggerOptions{Level: level, DisableTime: true, Output: logged{p}})
		}
	})
	r := ledger.Registration{Room: allocator.Room(room), Name: allocator.Instance(name), Address: handle,
		Build: "test", RequireJournal: a.has("required")}
	if hold := a.value("hold"); hold != "" {
		r.Hold = duration(hold)
	}
	if a.has("journal") {
		r.Journal = s.dir
	} else if dir := a.value("journal"); dir != "" {
		r.Journal = filepath.Join(s.dir, dir)
	}
	var err error
	if p.Instance, err = p.Ledger.Join(bg, r); err != nil {
		return "", err
	}
	p.OnDrop(func(why string) {
		p.note("drops all: " + why)
		p.rests = nil
	})
	p.OnOrphan(func(o ledger.Orphan) {
		p.note(fmt.Sprintf("alarm: IDs of %s from %d to %d", o.Tag, o.Began, o.Below-1))
	})
	p.OnTag(func(c ledger.TagChange) {
		if c.Settings == nil {
			p.note("hears of tag " + string(c.Name) + " without settings")
			return
		}
		p.note(fmt.Sprintf("hears that tag %s has steps up to %d, reserve %v", c.Name, c.Settings.MaxStep,
			c.Settings.Reserve))
	})
	s.live[handle], s.names[p.Incarnation()] = p, fmt.Sprintf("%s.%d", handle, s.lives[handle])
	if fate := s.ofStart; fate != nil {
		s.ofStart = nil
		if _, err := s.fate(p, fate); err != nil {
			return "", err
		}
	}
	if a.has("run") {
		p.run()
	}
	if ids := p.TakeKept(bg); ids > 0 {
		return fmt.Sprintf("it takes %d IDs", ids), nil
	}
	return "", nil
}

// rest returns what a process holds of a tag.
func (p *scripted) rest(tag allocator.Tag) (*ledger.Rest, error) {
	if rest := p.rests[tag]; rest != nil {
		return rest, nil
	}
	source, _, err := p.Source(bg, tag)
	if err != nil {
		return nil, err
	}
	if p.rests == nil {
		p.rests = map[allocator.Tag]*ledger.Rest{}
	}
	p.rests[tag] = &ledger.Rest{Source: source, Segments: p.Kept(source)}
	return p.rests[tag], nil
}

// hold leases IDs, of which none is issued yet.
func (s *script) hold(p *scripted, a args) (string, error) {
	rest, err := p.rest(a.tag(1))
	if err != nil {
		return "", err
	}
	seg, err := rest.Source.Lease(bg, number(a[0]))
	if err != nil {
		return "", err
	}
	rest.Segments = append(rest.Segments, seg)
	return fmt.Sprintf("%d to %d", seg.First, seg.Last()), nil
}

// issue issues IDs that a process holds.
func (s *script) issue(p *scripted, a args) (string, error) {
	rest, err := p.rest(a.tag(1))
	if err != nil {
		return "", err
	}
	var out []string
	for n := number(a[0]); n > 0 && len(rest.Segments) > 0; {
		var now allocator.Segment
		if now, rest.Segments[0] = rest.Segments[0].Split(n); rest.Segments[0].Count == 0 {
			rest.Segments = rest.Segments[1:]
		}
		n -= now.Count
		s.c.Issued.Add(a.tag(1), p.Room(), now)
		out = append(out, fmt.Sprintf("%d to %d", now.First, now.Last()))
	}
	if len(out) == 0 {
		return "it holds none", nil
	}
	return strings.Join(out, ", "), nil
}

// leave stops a process in good order.
func (s *script) leave(p *scripted, a args) (string, error) {
	var rests []ledger.Rest
	for _, tag := range slices.Sorted(maps.Keys(p.rests)) {
		rests = append(rests, *p.rests[tag])
	}
	kept, err := p.Keep(bg, rests)
	if err != nil {
		return "", err
	}
	p.rests = nil
	if err := p.Leave(bg); err != nil || a.has("stays") {
		return "", err
	}
	delete(s.live, p.handle)
	if err := p.end(); err != nil || kept == 0 {
		return "", err
	}
	return fmt.Sprintf("it keeps %d IDs", kept), nil
}

// on returns a command to the process that its first word names.
func on(do func(*script, *scripted, args) (string, error)) func(*script, args) (string, error) {
	return func(s *script, a args) (string, error) {
		p := s.live[a[0]]
		if p == nil {
			s.t.Fatalf("%s does not run", a[0])
		}
		return do(s, p, a[1:])
	}
}

// ask asks the process that runs at an address.
func (s *script) ask(ctx context.Context, seen record.SeenInstance, q record.Question,
	use record.UseMarks) (record.Memory, error) {
	p := s.live[seen.Address]
	if p == nil {
		return record.Memory{}, allocator.Errorf(allocator.Unavailable, "no process is at %s", seen.Address)
	}
	m := p.Memory(ctx, q)
	return m, errors.Join(m.Validate(), use(m.Room, m.Marks))
}

// journal returns the path of a process's journal, or of a copy.
func (s *script) journal(name string) string {
	return filepath.Join(s.dir, value[record.Identity](s.c, "identity").UUID, name+".journal")
}

func (s *script) copyJournal(from, to string) error {
	content, err := os.ReadFile(s.journal(from))
	if err == nil {
		err = os.WriteFile(s.journal(to), content, 0o600)
	}
	return err
}

// spoil writes a value by hand; nil deletes the key. The first value is kept for mend.
func (s *script) spoil(key string, value []byte) {
	if _, is := s.spoilt[key]; !is {
		s.spoilt[key], _ = s.c.Mem.Value(prefix + key)
	}
	s.c.Corrupt(key, value)
}

// filled returns a text with the random names that it stands for.
func (s *script) filled(text string) string {
	if strings.Contains(text, "{epoch}") {
		text = strings.ReplaceAll(text, "{epoch}", value[record.Epoch](s.c, "epoch").Epoch)
	}
	for incarnation, name := range s.names {
		text = strings.ReplaceAll(text, "{"+name+"}", incarnation)
	}
	text = strings.ReplaceAll(text, "{ff}", "\xff") // which is no text
	if strings.Contains(strings.ToLower(text), "{uuid}") {
		uuid := value[record.Identity](s.c, "identity").UUID
		text = strings.NewReplacer("{uuid}", uuid, "{UUID}", strings.ToUpper(uuid)).Replace(text)
	}
	return strings.ReplaceAll(text, "{migration}", s.migration.ID)
}

// value returns a stored value.
func value[T any](c *cluster, key string) (v T) {
	c.Helper()
	if err := json.Unmarshal(c.Value(key), &v); err != nil {
		c.Fatalf("%s: %v", key, err)
	}
	return v
}

// now returns what clocks show that are right.
func (s *script) now() time.Time { return time.Now().Add(s.offset).UTC() }

func (s *script) config(cfg *ledger.Config) { cfg.Now, cfg.UUID = s.now, s.uuid }

// since returns a time in Unix ms as what passed since the cluster began.
func (s *script) since(ms int64) string { return time.UnixMilli(ms).Sub(s.began).String() }

// registrations is a store that notes the registrations which are written through it.
type registrations struct {
	store.Store
	s *script
}

func (r registrations) Txn(ctx context.Context, txn store.Txn) (store.Answer, error) {
	r.s.mu.Lock()
	m := r.s.meanwhile
	now := m.key != "" && ledgertest.PutsUnder(m.key)(txn)
	if key, is := strings.CutPrefix(m.key, "read:"); is {
		now = len(txn.If) == 0 && len(txn.Then) > 0 && txn.Then[0].Get != nil && txn.Then[0].Get.Key == prefix+key
	}
	if now { // no other process does them
		r.s.meanwhile = meanwhile{}
	}
	r.s.mu.Unlock()
	do := func() {
		by := r.s.by
		r.s.by = nil
		for _, command := range m.commands {
			if said := r.s.do(strings.TrimSpace(command)); m.before <= 1 {
				r.s.said = append(r.s.said, said)
			}
		}
		r.s.by = by
	}
	after := m.before == 0
	if now && !after {
		do()
		if m.before > 1 {
			r.s.during(meanwhile{m.key, m.commands, m.before - 1})
		}
	}
	answer, err := r.Store.Txn(ctx, txn)
	if r.s.elsewhere.Swap(false) {
		answer.Connection += 100
	}
	if now && after {
		do()
	}
	for _, op := range txn.Then {
		if err == nil && answer.Succeeded && op.Put != nil && strings.HasPrefix(op.Put.Key, prefix+"rooms/") {
			r.s.mu.Lock()
			r.s.written = append(r.s.written,
				store.KV{Key: op.Put.Key, Value: op.Put.Value, ModRevision: answer.Revision})
			r.s.mu.Unlock()
		}
	}
	return answer, err
}

// complaints collects what a check finds.
type complaints struct {
	ledgertest.TB
	all []string
}

func (c *complaints) Errorf(format string, args ...any) {
	c.all = append(c.all, fmt.Sprintf(format, args...))
}

// plain replaces what is another one in each run: names of incarnations, workers, epochs, clusters and entries,
// numbers that reads make grow, the directory of journals.
func (s *script) plain(text string) string {
	for incarnation, name := range s.names {
		text = strings.ReplaceAll(text, incarnation, name)
	}
	for id, name := range s.workers {
		text = regexp.MustCompile(`\bworker `+id.String()+`\b`).ReplaceAllString(text, "worker "+name)
	}
	text = raftIndex.ReplaceAllString(text, "raft index is N, and was M")
	text = raftIndexAbove.ReplaceAllString(text, "raft index is N, and was $1")
	text = raftIndexOfBeat.ReplaceAllString(text, "$1:N")
	text = revisions.ReplaceAllString(text, "at revision N after it had shown revision M")
	text = pid.ReplaceAllString(strings.ReplaceAll(text, s.dir, "DIR"), "$1 N")
	return random.ReplaceAllString(text, "...")
}

var random = regexp.MustCompile(`[0-9a-f]{32}|[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f-]{21}|\b0[01][0-9A-HJKMNP-TV-Z]{24}\b`)

// pid is that of the process that runs the scripts, with its host.
var pid = regexp.MustCompile(`\b(PID|kill -9) \d+( on host [^,]+)?`)

// raftIndex grows with reads, too, of which some are made at once.
var raftIndex = regexp.MustCompile(`raft index is \d+, and was \d{1,5}\b`)

// raftIndexAbove is below one that a script made up.
var raftIndexAbove = regexp.MustCompile(`raft index is \d+, and was (\d{6,})`)

// raftIndexOfBeat is one above 9 that no script made up.
var raftIndexOfBeat = regexp.MustCompile(`("raft_index"):"\d{2,5}"`)

// revisions grow with heartbeats, too, of which one may come first or last of what is done at one instant.
var revisions = regexp.MustCompile(`at revision \d+ after it had shown revision \d+`)
