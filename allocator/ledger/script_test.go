package ledger_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/recovery"
	"github.com/march-id/march/allocator/ledger/store"
)

// TestScripts runs the protocol as text: commands, and what they answered. Each file has its own
// clusters. `go test . -run TestScripts -rewrite` writes the answers anew. The commands:
//
//	cluster LAYOUT                      a new cluster, with the tag t
//	step N                              makes t anew, before its first lease: with the largest step N
//	start ROOM/NAME [journal] [role]    a process; role: its etcd user writes its own room's keys only
//	crash ROOM/NAME                     the process ends; so does it if another one of its name starts
//	leave ROOM/NAME                     it stops in good order
//	lease ROOM/NAME N                   leases N IDs of t
//	see ROOM/NAME                       reads epoch and layout, and enters a new epoch
//	watch ROOM/NAME                     notes which processes are registered, and from then on who leaves
//	beat ROOM/NAME                      sends a heartbeat
//	backup NAME, restore NAME           of etcd
//	compact                             etcd forgets its history
//	rollback NAME                       its data directories are copied back, which no raft index shows
//	copy ROOM/NAME ROOM/COPY            copies a journal, for a later recover
//	fail ROOM/NAME                      etcd does not take the next transaction that deletes a key
//	pass                                a minute passes; the next look at etcd writes its beat
//	layout LAYOUT                       changes the layout
//	recover [without=A,B] [margin=N] [journal=A,B] [dry] [alone]
//	                                    asks all processes that run; alone: none of them
//	marks, halt                         the marks of t; why leasing is halted
//	check                               no ID was leased twice, and the store fits together
//
// A process is named ROOM/NAME, and its incarnations ROOM/NAME.1, ROOM/NAME.2 and so on.
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		s := &script{t: t}
		defer s.end()
		datadriven.RunTest(t, path, s.run)
	})
}

// script is the state of one file.
type script struct {
	t       *testing.T
	c       *cluster
	dir     string // of journals
	live    map[record.InstanceID]*scripted
	lives   map[record.InstanceID]int
	names   map[string]string // of incarnations
	backups map[string]int64
	clock   *wall      // of all processes
	written []store.KV // registrations since the last command
}

// scripted is a running process.
type scripted struct {
	*process

	id      record.InstanceID
	watches bool
	notes   []string // what the process reported since the last command
}

func (s *script) end() {
	for _, p := range s.live {
		_ = p.Close()
	}
}

func (s *script) run(t *testing.T, d *datadriven.TestData) string {
	var out strings.Builder
	for _, line := range strings.Split(d.Input, "\n") {
		if line = strings.TrimSpace(line); line != "" {
			fmt.Fprintln(&out, s.do(t, strings.Fields(line)))
			for _, p := range s.live {
				if p.watches && len(s.written) > 0 {
					p.Watched(s.written)
				}
			}
			s.written = nil
		}
	}
	return out.String()
}

// do runs one command.
func (s *script) do(t *testing.T, words []string) string {
	command, args := words[0], words[1:]
	if command == "cluster" {
		s.end()
		*s = script{t: t, c: newCluster(t, strings.Join(args, " ")), dir: t.TempDir(),
			live: map[record.InstanceID]*scripted{}, lives: map[record.InstanceID]int{}, names: map[string]string{},
			backups: map[string]int64{}, clock: at(t, "2026-11-22T12:00:00Z")}
		return "ok"
	}
	s.c.TB = t
	switch command {
	case "start":
		return s.start(record.InstanceID(args[0]), slices.Contains(args, "journal"), slices.Contains(args, "role"))
	case "backup":
		s.backups[args[0]] = s.c.Mem.Revision()
		return "ok"
	case "copy":
		content, err := os.ReadFile(s.journal(args[0]))
		if err == nil {
			err = os.WriteFile(s.journal(args[1]), content, 0o600)
		}
		if err != nil {
			return err.Error()
		}
		return "ok"
	case "compact":
		s.c.Mem.Compact()
		return "ok"
	case "step":
		n, _ := strconv.ParseInt(args[0], 10, 64)
		if err := s.c.Admin.DeleteTag(bg, "t", "test"); err != nil {
			return err.Error()
		}
		s.c.Tag("t", steps(n))
		return "ok"
	case "restore":
		s.c.Mem.Restore(s.backups[args[0]], 0, ledgertest.ClusterID)
		return "ok"
	case "rollback":
		s.c.Mem.RollBack(s.backups[args[0]], 0)
		return "ok"
	case "pass":
		s.clock.Time = s.clock.Add(time.Minute)
		return "ok"
	case "layout":
		s.c.Move(strings.Join(args, " "))
		return "ok"
	case "recover":
		return s.recover(args)
	case "marks":
		var marks []string
		for _, room := range []allocator.Room{"a", "b", "c"} {
			if next := s.c.Mark(room).Next; next > 0 {
				marks = append(marks, fmt.Sprintf("%s %d", room, next))
			}
		}
		return strings.Join(marks, ", ")
	case "halt":
		return s.halt()
	case "check":
		found := &complaints{TB: t}
		s.c.Mem.Arrive()
		ledgertest.CheckCluster(found, s.c.Mem.Open(), "default", s.c.Issued)
		return s.plain(strings.Join(append([]string{"ok"}, found.all...)[min(len(found.all), 1):], "\n  "))
	}
	p := s.live[record.InstanceID(args[0])]
	if p == nil {
		return args[0] + " does not run"
	}
	var err error
	said := "ok"
	switch command {
	case "crash":
		delete(s.live, p.id)
		err = p.Close()
	case "leave":
		delete(s.live, p.id)
		err = errors.Join(p.Leave(bg), p.Close())
	case "lease":
		var seg allocator.Segment
		n, _ := strconv.ParseInt(args[1], 10, 64)
		if seg, err = p.TryLease("t", n); err == nil {
			said = fmt.Sprintf("%d to %d", seg.First, seg.Last())
		}
	case "see":
		p.hear()
		err = p.Ledger.Check(bg)
	case "watch":
		p.watches = true
		p.See(bg)
	case "fail":
		p.Conn.Next(ledgertest.Fate{Name: ledgertest.NotDone}, func(txn store.Txn) bool {
			return slices.ContainsFunc(txn.Then, func(op store.Op) bool { return op.Delete != "" })
		})
	case "beat":
		err = p.Beat(bg)
	default:
		return "there is no command " + command
	}
	if err != nil {
		said = fmt.Sprint(allocator.KindOf(err)) + ": " + s.plain(err.Error())
	}
	said = strings.Join(append([]string{said}, p.notes...), "\n  ")
	p.notes = nil
	return said
}

// start starts a process; an earlier one of its name ends.
func (s *script) start(id record.InstanceID, journal, role bool) string {
	room, name, _ := strings.Cut(string(id), "/")
	if was := s.live[id]; was != nil {
		_ = was.Close()
		delete(s.live, id)
	}
	s.lives[id]++
	p := &scripted{process: s.c.process(), id: id}
	var etcd store.Store = registrations{p.Conn, s}
	if role {
		etcd = ledgertest.WithRole(etcd, record.Keys(prefix).RoomRole(allocator.Room(room), false))
	}
	p.Ledger = ledgertest.Open(s.t, etcd, s.clock.config)
	r := ledger.Registration{Room: allocator.Room(room), Name: allocator.Instance(name), Address: string(id)}
	if journal {
		r.Journal = s.dir
	}
	var err error
	if p.Instance, err = p.Ledger.Join(bg, r); err != nil {
		return fmt.Sprint(allocator.KindOf(err)) + ": " + s.plain(err.Error())
	}
	p.OnDrop(func(why string) { p.notes = append(p.notes, "drops all: "+why) })
	p.OnOrphan(func(o ledger.Orphan) {
		p.notes = append(p.notes, fmt.Sprintf("alarm: IDs of %s from %d to %d", o.Tag, o.Began, o.Below-1))
	})
	s.live[id], s.names[p.Incarnation()] = p, fmt.Sprintf("%s.%d", id, s.lives[id])
	return "ok"
}

// recover runs a recover, and returns what it reports.
func (s *script) recover(args []string) string {
	cfg := recovery.Config{Actor: "ann", Apply: true, Layout: recovery.LayoutKnown, Ask: s.ask}
	for _, arg := range args {
		key, value, _ := strings.Cut(arg, "=")
		switch key {
		case "without":
			for _, id := range strings.Split(value, ",") {
				cfg.Without = append(cfg.Without, record.InstanceID(id))
			}
		case "margin":
			steps, _ := strconv.ParseInt(value, 10, 64)
			cfg.Margin = &steps
		case "journal":
			for _, id := range strings.Split(value, ",") {
				m, err := ledger.ReadJournal(s.journal(id))
				if err != nil {
					return s.plain(err.Error())
				}
				cfg.Memories = append(cfg.Memories, m)
			}
		case "dry":
			cfg.Apply = false
		case "alone":
			cfg.Ask = asking(nil)
		default:
			return "there is no option " + key
		}
	}
	report, err := recovery.Run(bg, ledgertest.Open(s.t, s.c.Mem.Open(), s.clock.config), cfg)
	out := []string{fmt.Sprintf("answered %v, left %v, margin %d", report.Answered, report.LeftBefore, report.Total)}
	for _, m := range report.Missing {
		name := s.names[m.Incarnation]
		if name == "" {
			name = string(m.ID)
		}
		out = append(out, fmt.Sprintf("missing %s: %s", name, s.plain(m.Why)))
	}
	if err != nil {
		out = append(out, fmt.Sprint(allocator.KindOf(err))+": "+s.plain(err.Error()))
	}
	slices.Sort(out[1:])
	return strings.Join(out, "\n  ")
}

// complaints collects what a check finds.
type complaints struct {
	ledgertest.TB
	all []string
}

func (c *complaints) Errorf(format string, args ...any) {
	c.all = append(c.all, fmt.Sprintf(format, args...))
}

// ask asks the process that runs at an address.
func (s *script) ask(ctx context.Context, seen record.SeenInstance, q record.Question,
	use record.UseMarks) (record.Memory, error) {
	for id, p := range s.live {
		if string(id) == seen.Address {
			m := p.Memory(ctx, q)
			return m, use(m.Room, m.Marks)
		}
	}
	return record.Memory{}, allocator.Errorf(allocator.Unavailable, "no process is at %s", seen.Address)
}

// journal returns the path of a process's journal, or of a copy.
func (s *script) journal(name string) string {
	_, rest, _ := strings.Cut(string(s.c.Value("identity")), `"uuid":"`)
	uuid, _, _ := strings.Cut(rest, `"`)
	return filepath.Join(s.dir, uuid, name+".journal")
}

// registrations is a store that notes the registrations which are written through it.
type registrations struct {
	store.Store
	s *script
}

func (r registrations) Txn(ctx context.Context, txn store.Txn) (store.Answer, error) {
	answer, err := r.Store.Txn(ctx, txn)
	for _, op := range txn.Then {
		if err == nil && answer.Succeeded && op.Put != nil && strings.HasPrefix(op.Put.Key, prefix+"rooms/") {
			r.s.written = append(r.s.written,
				store.KV{Key: op.Put.Key, Value: op.Put.Value, ModRevision: answer.Revision})
		}
	}
	return answer, err
}

// halt returns who halted leasing, and why.
func (s *script) halt() string {
	var e record.Epoch
	if err := record.Decode(store.KV{Key: prefix + "epoch", Value: s.c.Value("epoch")}, &e); err != nil {
		s.t.Fatal(err)
	}
	if e.Halted == nil {
		return "none"
	}
	return e.Halted.By + ": " + s.plain(e.Halted.Why)
}

// plain replaces the names of incarnations and epochs, which are random, and times.
func (s *script) plain(text string) string {
	for incarnation, name := range s.names {
		text = strings.ReplaceAll(text, incarnation, name)
	}
	return random.ReplaceAllString(text, "...")
}

var random = regexp.MustCompile(`[0-9a-f]{32}|\d{4}-\d\d-\d\dT[0-9:]+Z`)
