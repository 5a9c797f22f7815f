package ledger_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/machine"
	"github.com/march-id/march/allocator/ledger/mirror"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/recovery"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/allocator/ledger/verify"
	"github.com/march-id/march/allocator/ledger/worker"
	"github.com/march-id/march/allocator/period"
	"github.com/march-id/march/allocator/plan"
	"github.com/march-id/march/allocator/timeid"
	"github.com/march-id/march/internal/problem"
)

// verbs are the commands. A process is named ROOM/NAME, or by the handle that it was started with, and its
// incarnations HANDLE.1, HANDLE.2 and so on.
var verbs []verb

func init() {
	verbs = []verb{
		{"cluster [formats=N] LAYOUT", "a new cluster, with the tag t", nil},
		{"start ROOM/NAME [journal[=DIR]] [role] [old-role] [required] [ahead=TIME] [callers=N] [pinned-window=TIME] " +
			"[as=HANDLE] [hold=TIME] [agree] [logs[=LEVEL]] [run]",
			"a process; the one before of its handle ends. role: its etcd user writes its own room's keys only; " +
				"old-role: and no tokens; agree: an operator agrees to its clock; logs: it says what it logs; " +
				"run: it does what it does by itself: sends heartbeats, follows what etcd shows, confirms tenures",
			(*script).start},
		{"run P", "it does from now on what it does by itself",
			on(func(_ *script, p *scripted, _ args) (string, error) { p.run(); return "", nil })},
		{"crash P [stays]", "the process ends; stays: only its journal is closed",
			on(func(s *script, p *scripted, a args) (string, error) {
				if a.has("stays") {
					return "", p.Close()
				}
				delete(s.live, p.handle)
				return "", p.end()
			})},
		{"leave P [stays]", "it stops in good order, and keeps what it holds; stays: it does not end yet",
			on((*script).leave)},
		{"hold P N [TAG]", "leases N IDs, and issues none of them yet", on((*script).hold)},
		{"renew-kept P", "drops what it took, as far as the layout that it has took that from its room",
			on(func(_ *script, p *scripted, _ args) (string, error) {
				layout, _ := p.Ledger.Layout()
				p.RenewKept(layout.Layout.Part(p.Room()))
				return "", nil
			})},
		{"issue P N [TAG]", "issues N of the IDs that it holds", on((*script).issue)},
		{"read P TAG", "reads an ordered tag", on(func(_ *script, p *scripted, a args) (string, error) {
			delete(p.rests, a.tag(0))
			_, err := p.rest(a.tag(0))
			return "", err
		})},
		{"tenure P TAG [silent] [hold=TIME] [as-read]",
			"takes an ordered tag; silent: also from a process that holds it; as-read: as it was read before",
			on((*script).tenure)},
		{"admits P TAG", "whether it may issue IDs of an ordered tag now",
			on(func(_ *script, p *scripted, a args) (string, error) {
				return "yes", p.tenures[a.tag(0)].Admits()
			})},
		{"release P TAG", "releases an ordered tag, with what it holds of it",
			on(func(_ *script, p *scripted, a args) (string, error) {
				p.tenures[a.tag(0)].Release(func() []allocator.Segment { return p.rests[a.tag(0)].Segments })
				return "", nil
			})},
		{"holder P TAG HOME", "which process of the home it finds that holds a tag which is ordered over all rooms",
			on(func(_ *script, p *scripted, a args) (string, error) {
				h, err := p.Holder(bg, a.tag(0), allocator.Room(a[1]))
				if err != nil || h == nil {
					return "none", err
				}
				return string(h.Instance), nil
			})},
		{"lease P N [TAG]", "leases N IDs of t, or of another tag",
			on(func(_ *script, p *scripted, a args) (string, error) {
				seg, err := p.TryLease(a[1:].tag(0), number(a[0]))
				if err != nil {
					return "", err
				}
				if seg.Count != number(a[0]) {
					return fmt.Sprintf("%d of them, %d to %d", seg.Count, seg.First, seg.Last()), nil
				}
				return fmt.Sprintf("%d to %d", seg.First, seg.Last()), nil
			})},
		{"all N TAG ...", "all processes look at etcd, and lease; says of which tags none",
			func(s *script, a args) (string, error) {
				var out []string
				for _, handle := range slices.Sorted(maps.Keys(s.live)) {
					s.live[handle].Ledger.Uncheck()
					for _, tag := range a[1:] {
						if _, err := s.live[handle].TryLease(allocator.Tag(tag), number(a[0])); err != nil {
							out = append(out, fmt.Sprintf("%s leases no %s", handle, tag))
						}
					}
				}
				return strings.Join(out, ", "), nil
			}},
		{"see P", "reads epoch and layout, and enters a new epoch",
			on(func(_ *script, p *scripted, _ args) (string, error) { p.hear(); return "", p.Ledger.Check(bg) })},
		{"watch P", "notes which processes are registered, and from then on who leaves",
			on(func(_ *script, p *scripted, _ args) (string, error) {
				p.watches = true
				p.See(bg)
				return "", nil
			})},
		{"beat P ...", "they send heartbeats", func(s *script, a args) (string, error) {
			var errs []error
			for _, handle := range a {
				errs = append(errs, s.live[handle].Beat(bg))
			}
			return "", errors.Join(errs...)
		}},
		{"serve P [VERSION]", "reports the layout that it has, or another one; says which it serves",
			on(func(_ *script, p *scripted, a args) (string, error) {
				layout, _ := p.Ledger.Layout()
				err := p.Serve(bg, number(append(a, fmt.Sprint(layout.Layout.Version))[0]))
				return fmt.Sprintf("serves %d", p.Version()), err
			})},
		{"trouble P", "for how long it could not lease, and why",
			on(func(_ *script, p *scripted, _ args) (string, error) {
				t := p.Trouble()
				if t.Err == nil {
					return "none", nil
				}
				return fmt.Sprintf("for %v: %v", time.Since(t.Since), t.Err), nil
			})},
		{"remembers P", "the other processes that it remembers, and which of them left",
			on(func(s *script, p *scripted, _ args) (string, error) {
				var out []string
				for _, i := range p.Memory(bg, record.Question{}).Seen {
					text := s.plain(i.Incarnation)
					if i.Left > 0 {
						text += " left"
					}
					out = append(out, text)
				}
				slices.Sort(out)
				return strings.Join(out, ", "), nil
			})},
		{"leasable P", "which layout it has, and why it leases nothing",
			on(func(_ *script, p *scripted, _ args) (string, error) {
				layout, _ := p.Ledger.Layout()
				said := fmt.Sprintf("version %d", layout.Layout.Version)
				if err := p.Ledger.Leasable(); err != nil {
					said += ", " + failure(err)
				}
				return said, nil
			})},
		{"confirmed P VERSION BOUNDARY LOWER-UPPER", "when a layout was confirmed last that leaves it what it " +
			"may hold of that range, leased under a version; and the newest one that it knows",
			on(func(s *script, p *scripted, a args) (string, error) {
				seg := allocator.Segment{Version: number(a[0]), Boundary: number(a[1]), Count: 1}
				if _, err := fmt.Sscanf(a[2], "%d-%d", &seg.Range.Lower, &seg.Range.Upper); err != nil {
					return "", err
				}
				at, newest := p.Ledger.Confirmed(p.Room(), seg)
				said := "never"
				if !at.IsZero() {
					said = at.Add(s.offset).Sub(s.began).String()
				}
				if newest.Outdates(seg) {
					said += ", and taken since"
				}
				return fmt.Sprintf("%s, newest %d", said, newest.Version), nil
			})},
		{"barred P", "which recover it answered", on(func(_ *script, p *scripted, _ args) (string, error) {
			if b, is := p.Barred(); is {
				return "by " + b.By, nil
			}
			return "by none", nil
		})},
		{"question P NONCE [etcd=N]", "asks it with the barrier of a halt: of the one in force, or kept from before; " +
			"etcd: of a recover that works on another etcd cluster",
			on(func(s *script, p *scripted, a args) (string, error) {
				switch a[0] {
				case "halt":
					s.nonce = value[record.Epoch](s.c, "epoch").Halted.Nonce
				case "kept":
				default:
					s.nonce = a[0]
				}
				b := &record.Barrier{Nonce: s.nonce, ClusterID: ledgertest.ClusterID}
				if text := a.value("etcd"); text != "" {
					b.ClusterID = uint64(number(text)) //nolint:gosec // small
				}
				m := p.Memory(bg, record.Question{Barrier: b})
				text := "barred"
				if !m.Barred {
					text = "not barred: " + m.Unbarred
				}
				for _, mark := range m.Marks {
					text += fmt.Sprintf("; %s up to %d", mark.Tag, mark.Next)
				}
				return text, nil
			})},
		{"meanwhile [read:]KEY COMMAND [; COMMAND]",
			"once a process or a console has written such a key, or read it before all others, and has no answer yet",
			func(s *script, a args) (string, error) {
				s.during(meanwhile{key: a[0], commands: strings.Split(a.rest(1), ";")})
				return "", nil
			}},
		{"before KEY N COMMAND [; COMMAND]",
			"before a process or a console writes such a key, the next N times; says the answers of the last time",
			func(s *script, a args) (string, error) {
				s.during(meanwhile{a[0], strings.Split(a.rest(2), ";"), int(number(a[1]))})
				return "", nil
			}},
		{"doubt P", "it suspects that etcd went back in time",
			on(func(_ *script, p *scripted, _ args) (string, error) { p.Ledger.Suspect(); return "", nil })},
		{"refresh P", "reads the layout",
			on(func(_ *script, p *scripted, _ args) (string, error) {
				_, err := p.Ledger.Refresh(bg)
				return "", err
			})},
		{"regressions P", "how often it found that etcd went back in time",
			on(func(_ *script, p *scripted, _ args) (string, error) {
				return fmt.Sprint(p.Ledger.Regressions()), nil
			})},
		{"ahead P TIME", "its clock is ahead by that",
			on(func(_ *script, p *scripted, a args) (string, error) { p.ahead = duration(a[0]); return "", nil })},
		{"suspect P", "it looks at etcd before its next lease",
			on(func(_ *script, p *scripted, _ args) (string, error) { p.Ledger.Uncheck(); return "", nil })},
		{"fate P FATE KEY [N] [times=N] [always]",
			"of the next transaction that puts a key with that beginning, or deletes one, or any; times: of the next " +
				"N of them; always: of all from now on; slow: it is done after N ms; elsewhere: its answer comes " +
				"over another connection; old-read: of one that reads such a key, N: a backup which shows what it " +
				"reads",
			on((*script).fate)},
		{"fate-of-start FATE KEY [N]", "of that of the next process that starts, once it has registered",
			func(s *script, a args) (string, error) { s.ofStart = a; return "", nil }},
		{"take P W BITS [pin=N] [tick=TIME] [age=TIME] [longest=TIME] [caller]", "takes a worker, W from then on",
			on((*script).take)},
		{"renew P W", "renews a worker", on(func(s *script, p *scripted, a args) (string, error) {
			if err := p.workers.Renew(bg, p.taken[a[0]]); err != nil {
				return "", err
			}
			return s.window(p.taken[a[0]]), nil
		})},
		{"giveback P W TIME", "gives a worker back that was used until then",
			on(func(s *script, p *scripted, a args) (string, error) {
				return "", p.workers.GiveBack(bg, p.taken[a[0]], s.began.Add(duration(a[1])).UnixMilli())
			})},
		{"holds P W", "whether it may use a worker",
			on(func(_ *script, p *scripted, a args) (string, error) {
				return fmt.Sprint(p.workers.Holds(p.taken[a[0]])), nil
			})},
		{"clock P", "how far its clock was found to be ahead",
			on(func(_ *script, p *scripted, _ args) (string, error) {
				return fmt.Sprintf("%v, of a median by %v", p.workers.ClockOff(), p.workers.ClockAhead()), nil
			})},
		{"compare P [TIME]", "compares its clock with others', or one that is ahead of it by that",
			on(func(s *script, p *scripted, a args) (string, error) {
				workers, err := s.leaser(p)
				if err != nil {
					return "", err
				}
				return "", workers.CheckClock(bg, p.Now().Add(duration(append(a, "0s")[0])))
			})},
		{"timeless", "etcd does not tell the time from now on",
			func(s *script, _ args) (string, error) { s.timeless = true; return "", nil }},
		{"window P W", "the worker's last window in etcd",
			on(func(s *script, p *scripted, a args) (string, error) { return s.stored(p.taken[a[0]].ID()), nil })},
		{"distribute P CLIENT BITS [guard=TIME|forever] [stable]", "gives a client of CosId a machine ID; " +
			"says when it was in use last", on((*script).distribute)},
		{"guard P CLIENT", "a client goes on with its machine ID",
			on(func(s *script, p *scripted, a args) (string, error) { return "", s.machines(p).Guard(bg, client(a)) })},
		{"revert P CLIENT [stable]", "a client has ended",
			on(func(s *script, p *scripted, a args) (string, error) {
				return "", s.machines(p).Revert(bg, client(a))
			})},
		{"backup NAME", "of etcd",
			func(s *script, a args) (string, error) { s.backups[a[0]] = s.c.Mem.Revision(); return "", nil }},
		{"restore NAME [bump=N] [etcd=N]", "the backup, perhaps into an etcd cluster with another ID",
			func(s *script, a args) (string, error) {
				id := ledgertest.ClusterID
				if text := a.value("etcd"); text != "" {
					id = uint64(number(text)) //nolint:gosec // small
				}
				s.c.Mem.Restore(s.backups[a[0]], number(cmp.Or(a.value("bump"), "0")), id)
				return "", nil
			}},
		{"rollback NAME [more=N]", "its data directories are copied back, which no raft index shows; N revisions came",
			func(s *script, a args) (string, error) {
				s.c.Mem.RollBack(s.backups[a[0]], number(cmp.Or(a.value("more"), "0")))
				return "", nil
			}},
		{"empty", "all keys are gone", func(s *script, _ args) (string, error) {
			var ops []store.Op
			for _, key := range s.c.Mem.Keys(prefix) {
				ops = append(ops, store.Op{Delete: key})
			}
			s.c.Mem.Corrupt(ops...)
			return "", nil
		}},
		{"compact", "etcd forgets its history",
			func(s *script, _ args) (string, error) { s.c.Mem.Compact(); return "", nil }},
		{"reconnect", "all connections to etcd break",
			func(s *script, _ args) (string, error) { s.c.Mem.Break(); return "", nil }},
		{"arrive", "late transactions happen",
			func(s *script, _ args) (string, error) { s.c.Mem.Arrive(); return "", nil }},
		{"copy ROOM/NAME ROOM/COPY", "copies a journal, for a later recover",
			func(s *script, a args) (string, error) { return "", s.copyJournal(a[0], a[1]) }},
		{"pass [TIME]", "time passes, a minute if it is not said", func(s *script, a args) (string, error) {
			d := time.Minute
			if len(a) > 0 {
				d = duration(a[0])
			}
			time.Sleep(d)
			return "", nil
		}},
		{"set TIME", "all clocks are set ahead by that",
			func(s *script, a args) (string, error) { s.offset += duration(a[0]); return "", nil }},
		{"repeat N COMMAND [; COMMAND]", "does commands N times, and says the last answer; # is how often it did them",
			func(s *script, a args) (said string, _ error) {
				for i := range number(a[0]) {
					for command := range strings.SplitSeq(strings.ReplaceAll(a.rest(1), "#", fmt.Sprint(i)), ";") {
						said = s.do(strings.TrimSpace(command))
					}
				}
				return said, nil
			}},
		{"costs COMMAND", "does a command, and says how many transactions etcd had, and how many of them wrote",
			func(s *script, a args) (string, error) {
				txns, writes := s.c.Mem.Txns(), s.c.Mem.Revision()
				said := s.do(a.rest(0))
				txns, writes = s.c.Mem.Txns()-txns, s.c.Mem.Revision()-writes
				return strings.TrimPrefix(fmt.Sprintf("%s; transactions: %d, %d of them write", said, txns, writes),
					"; "), nil
			}},
		{"keep KEY", "keeps a value for mend",
			func(s *script, a args) (string, error) { s.spoilt[a[0]] = s.c.Value(a[0]); return "", nil }},
		{"put KEY VALUE", "writes a value by hand; {epoch} is the one in force, {HANDLE.N} an incarnation",
			func(s *script, a args) (string, error) {
				s.spoil(s.filled(a[0]), []byte(s.filled(a.rest(1))))
				return "", nil
			}},
		{"mark ROOM TAG NEXT REVISION VERSION:FIRST-END ...",
			"writes a mark with the stamp of a layout's revision, and eras", func(s *script, a args) (string, error) {
				mark := record.Mark{Next: number(a[2]), Stamp: record.Stamp{Epoch: "e", Revision: number(a[3])}}
				for _, text := range a[4:] {
					e := record.Era{Epoch: "e"}
					if _, err := fmt.Sscanf(text, "%d:%d-%d", &e.Version, &e.First, &e.End); err != nil {
						return "", err
					}
					mark.Eras = append(mark.Eras, e)
				}
				s.spoil("marks/"+a[0]+"/"+a[1], mark.Encode())
				return "", nil
			}},
		{"edit KEY FROM TO", "replaces a text that must be there", func(s *script, a args) (string, error) {
			key := s.filled(a[0])
			was := string(s.c.Value(key))
			if !strings.Contains(was, s.filled(a[1])) {
				s.t.Fatalf("%s is not in %s", a[1], was)
			}
			s.spoil(key, []byte(strings.ReplaceAll(was, s.filled(a[1]), s.filled(a.rest(2)))))
			return "", nil
		}},
		{"drop KEY", "deletes a key by hand",
			func(s *script, a args) (string, error) { s.spoil(s.filled(a[0]), nil); return "", nil }},
		{"mend KEY [FROM]", "puts the first value of a key back, or that of another key",
			func(s *script, a args) (string, error) {
				value, is := s.spoilt[a[len(a)-1]]
				if !is || len(a) > 1 {
					value = s.c.Value(a[len(a)-1])
				}
				s.c.Corrupt(a[0], value)
				return "", nil
			}},
		{"show KEY", "its value", func(s *script, a args) (string, error) {
			value, there := s.c.Mem.Value(prefix + a[0])
			if !there {
				return "there is none", nil
			}
			return string(value), nil
		}},
		{"keys [PREFIX]", "the keys with a beginning", func(s *script, a args) (string, error) {
			return strings.ReplaceAll(strings.Join(s.c.Mem.Keys(prefix+a.rest(0)), " "), prefix, ""), nil
		}},
		{"migrate LAYOUT", "starts a migration of one move; {migration} is its ID", (*script).migrate},
		{"move [reports]", "makes its move; reports: of rooms that were read when it started",
			func(s *script, a args) (string, error) {
				var read *ledger.State
				if a.has("reports") {
					read = s.reports
				}
				m, err := s.c.Admin.Migration(bg, s.migration.ID)
				if err == nil {
					m, err = s.c.Admin.MakeMove(bg, m, read)
				}
				if err == nil {
					s.migration = m
				}
				return "", err
			}},
		{"abort", "aborts it", func(s *script, _ args) (string, error) {
			_, err := s.c.Admin.UpdateMigration(bg, s.migration, "abort", "ann", func(m *record.Migration) error {
				m.State = record.Aborted
				return nil
			})
			return "", err
		}},
		{"init LAYOUT", "makes the cluster", func(s *script, a args) (string, error) {
			_, err := s.c.Admin.Init(bg, ledgertest.Lay(s.t, a.rest(0)), "test")
			return "", err
		}},
		{"layout LAYOUT", "changes the layout", func(s *script, a args) (string, error) {
			from, err := s.c.Admin.Ledger.Refresh(bg)
			if err == nil {
				_, err = s.c.Admin.ChangeLayout(bg, from, ledgertest.Lay(s.t, a.rest(0)), "test")
			}
			return "", err
		}},
		{"began N", "an epoch with this margin total begins, as after recovers",
			func(s *script, a args) (string, error) { s.c.Began(number(a[0])); return "", nil }},
		{"tag NAME SETTINGS", "makes a tag", func(s *script, a args) (string, error) {
			_, err := s.c.Admin.CreateTag(bg, a.tag(0), settings(record.DefaultTag(), a[1:]), "test")
			return "", err
		}},
		{"fresh NAME SETTINGS", "makes one whose name was never in use", func(s *script, a args) (string, error) {
			_, err := s.c.Admin.CreateFreshTag(bg, a.tag(0), settings(record.DefaultTag(), a[1:]), "test")
			return "", err
		}},
		{"reuse NAME SETTINGS", "makes one whatever its name was before", func(s *script, a args) (string, error) {
			_, risk, err := s.c.Admin.ReuseTag(bg, a.tag(0), settings(record.DefaultTag(), a[1:]), "ann")
			return fmt.Sprint(risk), err
		}},
		{"update NAME SETTINGS", "changes a tag", func(s *script, a args) (string, error) {
			_, err := s.c.Admin.UpdateTag(bg, a.tag(0), func(t *record.TagSettings) error {
				*t = settings(*t, a[1:])
				return nil
			}, "test")
			return "", err
		}},
		{"delete TAG", "deletes a tag",
			func(s *script, a args) (string, error) { return "", s.c.Admin.DeleteTag(bg, a.tag(0), "test") }},
		{"forget-tag TAG", "forgets a deleted tag",
			func(s *script, a args) (string, error) { return "", s.c.Admin.ForgetTag(bg, a.tag(0), "test") }},
		{"skip TAG N [rooms=A,B] [force]", "makes rooms skip ahead", func(s *script, a args) (string, error) {
			var rooms []allocator.Room
			for _, room := range a.list("rooms") {
				rooms = append(rooms, allocator.Room(room))
			}
			_, err := s.c.Admin.SkipTag(bg, a.tag(0), rooms, number(a[1]), a.has("force"), "test")
			return "", err
		}},
		{"describe TAG", "what a tag, or a deleted one, has besides the settings of its maker", (*script).describe},
		{"upgrade", "turns the newest formats on",
			func(s *script, _ args) (string, error) { _, err := s.c.Admin.Upgrade(bg, "ann"); return "", err }},
		{"require yes|no", "whether journals are required", func(s *script, a args) (string, error) {
			_, err := s.c.Admin.UpdateSettings(bg, func(c *record.ClusterSettings) error {
				c.RequireJournal = a[0] == "yes"
				return nil
			}, "ann")
			return "", err
		}},
		{"confirm ROOM NAME", "confirms an instance without its journal", func(s *script, a args) (string, error) {
			return "", s.c.Admin.ConfirmInstance(bg, allocator.Room(a[0]), allocator.Instance(a[1]), "ann")
		}},
		{"forget ROOM NAME", "forgets an instance", func(s *script, a args) (string, error) {
			return "", s.c.Admin.Forget(bg, allocator.Room(a[0]), allocator.Instance(a[1]), "ann")
		}},
		{"instances [full]", "the registered instances, with the layouts that they reported; full: and with the " +
			"rest of what is shown of them", (*script).instances},
		{"note ROOM NAME", "notes how an instance is seen now", func(s *script, a args) (string, error) {
			var err error
			s.noted, err = s.instance(a)
			return "", err
		}},
		{"forget-silent ROOM NAME [noted]", "forgets an instance as it is seen, or was when it was noted",
			func(s *script, a args) (string, error) {
				i, err := s.instance(a)
				if a.has("noted") {
					i = s.noted
				}
				return "", errors.Join(err, s.c.Admin.ForgetSilent(bg, i, "ann"))
			}},
		{"console X [keeps=N]", "a console looks at etcd, and remembers what it saw; it keeps N layouts only",
			func(s *script, a args) (string, error) {
				l := ledgertest.Open(s.t, registrations{s.c.Mem.Open(), s}, s.config)
				s.consoles[a[0]] = l
				l.HaltAs("console " + a[0])
				if keeps := a.value("keeps"); keeps != "" {
					l.Keep(number(keeps), record.MaxMigrations, record.MaxAudits)
				}
				return "", l.Check(bg)
			}},
		{"by X COMMAND", "the console does a command of an operator", func(s *script, a args) (string, error) {
			s.by = s.consoles[a[0]]
			defer func() { s.by = nil }()
			return s.do(a.rest(1)), nil
		}},
		{"announce ID", "a console announces its address under that ID, or looks at its key",
			func(s *script, a args) (string, error) { return "", s.c.Admin.Announce(bg, a[0], "h:7001") }},
		{"retire ID", "the console stops in good order",
			func(s *script, a args) (string, error) { return "", s.c.Admin.Retire(bg, a[0]) }},
		{"check-now", "looks at etcd", func(s *script, _ args) (string, error) {
			_, err := s.c.Admin.Ledger.CheckNow(bg)
			return "", err
		}},
		{"halt WHY", "ann halts leasing", func(s *script, a args) (string, error) {
			_, err := s.c.Admin.Ledger.Halt(bg, "ann", a.rest(0))
			return "", err
		}},
		{"halted", "why leasing is halted", func(s *script, _ args) (string, error) {
			if halt := value[record.Epoch](s.c, "epoch").Halted; halt != nil {
				return halt.By + ": " + halt.Why, nil
			}
			return "no", nil
		}},
		{"recover [without=A,B] [stopped=A,B] [margin=N] [journal=A,B] [mirror=M] [no-mirror=M] " +
			"[layout=known|stored|undecided|LAYOUT] [skip-tag=T] [dry] [alone] [away=A,B] [named] " +
			"[answers=A:B[:late]] [unbarred=A] [silent=A:N] [fails=KEY] [during=VERB:WORD] [copy] [asked]",
			"asks all processes that run, and the mirrors at the addresses of consoles that etcd has; alone: no " +
				"process; away: not these; answers: B is at A's address; late: once it is asked to confirm; " +
				"unbarred: A does not accept the barrier at first; silent: A does not confirm the N-th time, or a " +
				"mirror does not answer then; fails: nothing is written to keys with that beginning; " +
				"during: what happens before the first question; copy: of a copy of etcd, as a rehearsal; " +
				"asked: says how often each address was asked",
			(*script).recover},
		{"mirror NAME [to=BACKUP] [until=TIME] [follows]", "a console begins to mirror the cluster, or begins " +
			"another view; to: it has what came up to that backup; until: its connection lasts so long from now; " +
			"follows: it goes on by itself", (*script).mirror},
		{"look NAME [to=BACKUP] [until=TIME]", "it sees all that etcd has", (*script).look},
		{"views NAME", "what connections showed it: from when to when, and how far room a's mark of t reaches",
			(*script).views},
		{"part NAME JSON", "a mirror takes a part, as mirrors are sent and stored; {uuid} is the cluster's",
			func(s *script, a args) (string, error) {
				var p mirror.Part
				if err := json.Unmarshal([]byte(s.filled(a.rest(1))), &p); err != nil {
					return "", err
				}
				if s.mirrors[a[0]] == nil {
					s.mirrors[a[0]] = &seen{Mirror: mirror.New(100)}
				}
				s.mirrors[a[0]].Take(p, true)
				return "", nil
			}},
		{"marks [TAG]", "the marks of t, or of another tag", (*script).marks},
		{"audit N", "the latest audit entries", func(s *script, a args) (string, error) {
			var out []string
			entries, _, err := s.c.Admin.Audits(bg, "", int(number(a[0])))
			for _, e := range entries {
				out = append(out, fmt.Sprintf("\n  %s: %s of %s", e.Actor, e.Action, e.Object))
			}
			return strings.Join(out, ""), err
		}},
		{"entry N", "what the N-th latest audit entry changed", func(s *script, a args) (string, error) {
			n := int(number(a[0]))
			entries, _, err := s.c.Admin.Audits(bg, "", n)
			if err != nil || len(entries) < n {
				return "", err
			}
			return fmt.Sprintf("from %s to %s", entries[n-1].From, entries[n-1].To), nil
		}},
		{"list tags|every-tag|layouts|migrations|migration|audit|settings",
			"a list, read in pages of any size, and the keys that it passes over; every-tag: all tags with their " +
				"marks; migration: the one under way", (*script).list},
		{"uuid [UUID]", "the cluster's uuid; or: with which one programs that open it from now on are configured",
			func(s *script, a args) (string, error) {
				if len(a) == 0 {
					return s.c.Admin.Ledger.UUID(bg)
				}
				s.uuid = s.filled(a[0])
				return "", nil
			}},
		{"origin ID [TAG]", "which room leased an ID", (*script).origin},
		{"verify", "what is wrong, found with pages of any size", (*script).verify},
		{"check", "no ID was leased twice, and the store fits together", func(s *script, _ args) (string, error) {
			found := &complaints{TB: s.t}
			s.c.Mem.Arrive()
			ledgertest.CheckCluster(found, s.c.Mem.Open(), "default", s.c.Issued)
			return strings.Join(found.all, "\n  "), nil
		}},
		{"twice [TAG]", "IDs that were leased twice, also in a history that etcd lost", (*script).twice},
	}
}

func (s *script) migrate(a args) (string, error) {
	from, err := s.c.Admin.Ledger.Refresh(bg)
	if err != nil {
		return "", err
	}
	s.reports, _ = s.c.Admin.Ledger.State()
	to := ledgertest.Lay(s.t, a.rest(0))
	s.migration, err = s.c.Admin.StartMigration(bg, from, record.Migration{From: from.Layout, Target: to,
		Moves: record.MovesOf(plan.Move{Kind: plan.Retract, Layout: to})}, "ann")
	return "", err
}

// fates are those that a script names.
var fates = map[string]ledgertest.FateName{"not-done": ledgertest.NotDone, "answer-lost": ledgertest.DoneAnswerLost,
	"late": ledgertest.Late, "twice": ledgertest.Twice, "wrong-cluster": ledgertest.WrongCluster,
	"old-revision": ledgertest.OldRevision, "no-leader": ledgertest.NoLeader,
	"old-read": ledgertest.StaleRead, "done": ledgertest.Done, "slow": ledgertest.Done,
	"elsewhere": ledgertest.Done,
	"no-space":  ledgertest.NoSpaceButApplied}

// run has a process do what it does by itself, until it ends.
func (p *scripted) run() {
	ctx, cancel := context.WithCancel(bg)
	p.OnLostWorkers(func() { p.note("lost a worker") })
	var running errgroup.Group
	for _, run := range []func() error{
		func() error { return p.Instance.Run(ctx) },
		func() error { return p.Ledger.Run(ctx, func(ledger.TagChange) {}, nil) },
	} {
		running.Go(func() error {
			err := run()
			if err == nil || ctx.Err() != nil {
				return err
			}
			p.note("ends: " + failure(err))
			return nil
		})
	}
	p.stop = func() error {
		cancel()
		return running.Wait()
	}
}

// tenure takes an ordered tag.
func (s *script) tenure(p *scripted, a args) (string, error) {
	tag, hold := a.tag(0), record.DefaultTenureHold.Duration()
	if text := a.value("hold"); text != "" {
		hold = duration(text)
	}
	if !a.has("as-read") {
		delete(p.rests, tag)
	}
	rest, err := p.rest(tag)
	if err != nil {
		return "", err
	}
	tenure, other, err := p.Hold(bg, rest.Source, hold, "")
	if other != nil && a.has("silent") {
		tenure, other, err = p.Hold(bg, rest.Source, hold, other.Nonce)
	}
	if err != nil {
		return "", err
	}
	if other != nil {
		held := "held by " + string(other.Instance)
		if p.Sticky(tag, other) {
			held += ", for which it is young"
		}
		return held, nil
	}
	p.tenures[tag] = tenure
	tenure.OnEnd(func() { p.note("holds " + string(tag) + " no longer") })
	return "", nil
}

func (s *script) fate(p *scripted, a args) (string, error) {
	fate, is := fates[a[0]]
	if !is {
		s.t.Fatalf("there is no fate %s", a[0])
	}
	match := ledgertest.PutsUnder(a[1])
	if a[1] == "any" {
		match = func(store.Txn) bool { return true }
	}
	if a[1] == "delete" {
		match = func(txn store.Txn) bool {
			return slices.ContainsFunc(txn.Then, func(op store.Op) bool { return op.Delete != "" })
		}
	}
	if fate == ledgertest.StaleRead {
		reads := func(op store.Op) bool { return strings.HasPrefix(op.Get.Key, prefix+a[1]) }
		match = func(txn store.Txn) bool {
			return !ledgertest.Writes(txn) && slices.ContainsFunc(slices.Concat(txn.Then, txn.Else), reads)
		}
	}
	becomes := ledgertest.Fate{Name: fate, N: 1}
	if len(a) > 2 && a[2] != "always" && !strings.HasPrefix(a[2], "times=") {
		if backup, is := s.backups[a[2]]; is {
			becomes.N = int(s.c.Mem.Revision() - backup)
		} else {
			becomes.N = int(number(a[2]))
		}
	}
	switch a[0] {
	case "slow":
		becomes.Do = func() { time.Sleep(time.Duration(becomes.N) * time.Millisecond) }
	case "elsewhere":
		becomes.Do = func() { s.elsewhere.Store(true) }
	}
	times := 1
	if text := a.value("times"); text != "" {
		times = int(number(text))
	} else if a.has("always") {
		times = math.MaxInt
	}
	met := p.Conn.Next(becomes, times, match)
	if !a.has("always") {
		s.fates = append(s.fates, expected{strings.Join(a, " "), met, times})
	}
	return "", nil
}

// settings returns a tag's settings as words change them.
func settings(t record.TagSettings, a args) record.TagSettings {
	for _, word := range a {
		key, value, _ := strings.Cut(word, "=")
		switch key {
		case "start":
			t.Start = number(value)
		case "limit":
			t.Limit = number(value)
		case "step":
			least, most, both := strings.Cut(value, "-")
			if !both {
				least, most = "1", value
			}
			t.MinStep, t.MaxStep = number(least), number(most)
		case "jump":
			t.MaxJump = number(value)
		case "skew":
			t.MaxSkew = number(value)
		case "skip": // as no operator can
			room, to, _ := strings.Cut(value, ":")
			t.Skips = record.Skips{allocator.Room(room): number(to)}
		case "format":
			t.Format = value
		case "period":
			parts := strings.SplitN(value, "/", 3)
			t.Period = period.Period{Unit: period.ParseUnit(parts[0]), Digits: int(number(parts[1])), Zone: parts[2]}
		case "time": // TIME/WORKER/SEQUENCE bits
			l := timeid.Layout{Unit: time.Millisecond, Epoch: 1_600_000_000_000}
			_, err := fmt.Sscanf(value, "%d/%d/%d", &l.TimeBits, &l.WorkerBits, &l.SequenceBits)
			if err != nil {
				panic(err)
			}
			tag := record.NewTimeTag(l)
			t.Time = &tag
		case "strict":
			t.StrictOrder, t.TenureHold = record.OrderRoom, record.DefaultTenureHold
			if value == "cluster" {
				t.StrictOrder = record.OrderCluster
			}
		case "home":
			t.Home = allocator.Room(value)
		case "hold":
			t.TenureHold = record.DurationOf(duration(value))
		case "epoch":
			t.Time.EpochMS = number(value)
		case "unit":
			t.Time.UnitMS = duration(value).Milliseconds()
		case "order":
			t.Time.Order = timeid.WorkerLast
		case "rollback":
			t.Time.Rollback = timeid.Offset
		default:
			panic("there is no setting " + key)
		}
	}
	return t
}

func (s *script) describe(a args) (string, error) {
	t, err := s.c.Admin.Tag(bg, a.tag(0))
	what := "tag"
	if allocator.KindOf(err) == allocator.NotFound {
		deleted, _, listErr := s.c.Admin.DeletedTags(bg, "", "", 0, 100)
		i := slices.IndexFunc(deleted, func(d record.Tag) bool { return d.Name == a.tag(0) })
		if listErr != nil || i < 0 {
			return "", errors.Join(err, listErr)
		}
		what, t, err = "deleted tag", deleted[i], nil
	}
	if err != nil {
		return "", err
	}
	said := fmt.Sprintf("%s, from %d, steps up to %d, once %d, least ID %d, made with margin %d", what, t.Start,
		t.MaxStep, t.LargestStep, t.Least, t.BaseTotal)
	if t.Time != nil {
		said = fmt.Sprintf("%s of %d/%d/%d bits, %d ms each from %d, order %v, rollback %v", what, t.Time.TimeBits,
			t.Time.WorkerBits, t.Time.SequenceBits, t.Time.UnitMS, t.Time.EpochMS, t.Time.Order, t.Time.Rollback)
	}
	for _, room := range slices.Sorted(maps.Keys(t.Skips)) {
		said += fmt.Sprintf(", room %s skips to %d", room, t.Skips[room])
	}
	return said, nil
}

// instance returns the instance that is registered under a room and a name.
func (s *script) instance(a args) (found record.Instance, _ error) {
	all, _, err := s.c.Admin.Instances(bg, allocator.Room(a[0]))
	for _, i := range all {
		if i.Name == allocator.Instance(a[1]) {
			found = i
		}
	}
	return found, err
}

func (s *script) instances(a args) (string, error) {
	all, bad, err := s.c.Admin.Instances(bg, "")
	var out []string
	for _, i := range all {
		text := fmt.Sprintf("%s on version %d", i.ID(), i.Reported())
		if a.has("full") {
			text += fmt.Sprintf(", at %s, of build %s, started at %s, heard of at %s", i.Address, i.Build,
				s.since(i.Started.UnixMilli()), s.since(i.LastSeen.UnixMilli()))
		}
		if i.Stale {
			text += ", not of this epoch"
		}
		if i.Unconfirmed {
			text += ", unconfirmed"
		}
		if i.Unreadable != nil {
			text += ", " + i.Unreadable.Error()
		}
		out = append(out, text)
	}
	for _, b := range bad {
		out = append(out, b.Error())
	}
	return strings.Join(out, "; "), err
}

// list reads a list in pages of several sizes.
func (s *script) list(a args) (string, error) {
	var said string
	sizes := []int{100, 1, 2, 3, 4}
	if !slices.Contains([]string{"tags", "layouts", "migrations", "audit"}, a[0]) {
		sizes = sizes[:1] // it has no pages
	}
	for _, n := range sizes {
		var names, bad []string
		for after, whole := "", false; !whole; {
			page, skipped, err := s.page(a[0], after, n)
			if err != nil {
				return "", err
			}
			if whole = len(page) < n; !whole {
				after = page[n-1]
			}
			names = append(names, page...)
			for _, key := range skipped {
				bad = append(bad, "\n  "+key.Error())
			}
		}
		slices.Sort(bad)
		now := fmt.Sprintf("%d: %s%s", len(names), strings.Join(names, " "), strings.Join(bad, ""))
		if n < 100 && now != said {
			s.t.Errorf("in pages of %d it is\n%s\nwant\n%s", n, now, said)
		}
		said = now
	}
	return said, nil
}

// page reads a page of a list, or all of one that has no pages.
func (s *script) page(of, after string, n int) (names []string, bad []record.KeyError, err error) {
	admin := s.c.Admin
	switch of {
	case "tags":
		var page []record.Tag
		page, bad, err = admin.Tags(bg, "", allocator.Tag(after), 0, n)
		for _, t := range page {
			names = append(names, string(t.Name))
		}
	case "every-tag":
		bad, err = admin.EachTag(bg, func(t record.Tag, _ map[allocator.Room]record.Mark) error {
			names = append(names, string(t.Name))
			return nil
		})
	case "layouts":
		var page []record.Layout
		page, bad, err = admin.Layouts(bg, number(cmp.Or(after, "0")), n)
		for _, l := range page {
			names = append(names, fmt.Sprint(l.Layout.Version))
		}
	case "migrations":
		var page []record.Migration
		page, bad, err = admin.Migrations(bg, after, n)
		for _, m := range page {
			names = append(names, m.ID)
		}
	case "audit":
		var page []record.AuditEntry
		page, bad, err = admin.Audits(bg, after, n)
		for _, e := range page {
			names = append(names, e.ID)
		}
	case "migration":
		var m record.Migration
		var active bool
		if m, active, err = admin.ActiveMigration(bg); active {
			names = append(names, m.ID)
		}
	case "settings":
		var set record.ClusterSettings
		set, err = admin.Settings(bg)
		names = append(names, fmt.Sprintf("journals required: %v", set.RequireJournal))
	default:
		s.t.Fatalf("there is no list of %s", of)
	}
	return names, bad, err
}

func (s *script) marks(a args) (string, error) {
	var out []string
	for _, room := range []allocator.Room{"a", "b", "c"} {
		if _, there := s.c.Mem.Value(prefix + "marks/" + string(room) + "/" + string(a.tag(0))); !there {
			continue
		}
		mark := s.c.markOf(room, a.tag(0))
		text := fmt.Sprintf("%s %d", room, mark.Next)
		if mark.Total > 0 {
			text += fmt.Sprintf(" with margin %d", mark.Total)
		}
		out = append(out, text)
	}
	return strings.Join(out, ", "), nil
}

func (s *script) origin(a args) (string, error) {
	o, err := s.c.Admin.Origin(bg, a[1:].tag(0), number(a[0]))
	if err != nil {
		return "", err
	}
	said := fmt.Sprintf("room %s under version %d", o.Room, o.Layout.Layout.Version)
	if o.Room == "" {
		said = fmt.Sprintf("one of rooms %v, lost %v", o.Rooms, o.Lost)
	}
	for _, bad := range o.Unreadable {
		said += "\n  " + bad.Error()
	}
	return said, nil
}

func (s *script) verify(args) (string, error) {
	var said string
	for _, page := range []int64{1000, 1, 2, 3} {
		report, err := verify.Run(bg, ledgertest.Open(s.t, s.c.Mem.Open()).Cluster(), verify.Options{PageSize: page,
			Damage: problem.LineOfKey})
		if err != nil {
			return "", err
		}
		slices.Sort(report.Problems)
		now := strings.Join(report.Problems, "\n  ")
		if report.More > 0 || page != 1000 && now != said {
			s.t.Errorf("with pages of %d it finds, and %d more:\n  %s\nwant:\n  %s", page, report.More, now, said)
		}
		said = now
	}
	return said, nil
}

func (s *script) twice(a args) (string, error) {
	seen := make(map[int64]bool)
	for _, segments := range s.c.Issued[a.tag(0)] {
		for _, seg := range segments {
			for id := range seg.IDs() {
				if seen[id] {
					return fmt.Sprint("ID ", id), nil
				}
				seen[id] = true
			}
		}
	}
	return "", nil
}

// recover runs a recover, and returns what it reports.
func (s *script) recover(a args) (string, error) {
	cfg := recovery.Config{Actor: "ann", Apply: !a.has("dry"), Layout: recovery.LayoutKnown, Ask: s.ask,
		Named: a.has("named"), Without: a.ids("without"), Stopped: a.ids("stopped")}
	if steps := a.value("margin"); steps != "" {
		margin := number(steps)
		cfg.Margin = &margin
	}
	for _, id := range a.list("journal") {
		m, err := ledger.ReadJournal(s.journal(id))
		if err != nil {
			return "", err
		}
		cfg.Memories = append(cfg.Memories, m)
	}
	cfg.NoMirrors, cfg.Console, s.asked = a.list("no-mirror"), s.askMirror(a), map[string]int{}
	for _, name := range a.list("mirror") {
		cfg.Witnesses = append(cfg.Witnesses, recovery.Witness{Name: name, Ask: cfg.Console(name), Needed: true})
	}
	switch choice := a.value("layout"); choice {
	case "", "known":
	case "stored":
		cfg.Layout = recovery.LayoutStored
	case "undecided":
		cfg.Layout = recovery.LayoutUndecided
	default:
		cfg.Layout, cfg.Given = recovery.LayoutGiven, ledgertest.Lay(s.t, strings.ReplaceAll(choice, ",", " "))
	}
	if tag := a.value("skip-tag"); tag != "" {
		cfg.Skip = []allocator.Tag{allocator.Tag(tag)}
	}
	if a.has("alone") {
		cfg.Ask = asking(nil)
	}
	s.disturb(&cfg, a)
	conn := s.c.Mem.Open()
	if a.has("copy") {
		conn = s.c.Mem.Copy(ledgertest.ClusterID, 1000).Open()
	}
	if key := a.value("fails"); key != "" {
		conn.Fate(func(txn store.Txn) (fate ledgertest.Fate) {
			if ledgertest.PutsUnder(key)(txn) {
				fate.Name = ledgertest.NotDone
			}
			return fate
		})
	}
	report, err := recovery.Run(bg, ledgertest.Open(s.t, conn, s.config), cfg)
	said := s.reported(report, err)
	if err == nil && cfg.Apply && report.Epoch == "" {
		said += "\n  no epoch began"
	}
	if a.has("asked") {
		said += fmt.Sprintf("\n  asked %v", s.asked)
	}
	return said, nil
}

// askMirror asks the mirror at an address, until it falls silent.
func (s *script) askMirror(a args) func(string) recovery.AskMirror {
	return func(address string) recovery.AskMirror {
		return func(ctx context.Context, q mirror.Question,
			use func(mirror.Part) error) (mirror.Answer, error) {
			s.mu.Lock()
			s.asked[address]++
			n := s.asked[address]
			s.mu.Unlock()
			if m := s.mirrors[address]; m != nil && a.value("silent") != fmt.Sprintf("%s:%d", address, n) {
				return m.Asked(ctx, q, use)
			}
			return mirror.Answer{}, allocator.Errorf(allocator.Unavailable, "no console is at %s", address)
		}
	}
}

// seen is a mirror that sees the store when a script says so.
type seen struct {
	*mirror.Mirror
	keys map[string]bool // that it saw since its view began
	stop func()          // following etcd by itself; nil if it does not
}

// follow has a mirror go on by itself.
func (s *script) follow(m *seen) {
	l := ledgertest.Open(s.t, s.c.Mem.Open(), s.config)
	l.HaltAs("console")
	f := mirror.NewFollower(m.Mirror, mirror.Config{Cluster: l.Cluster(), Gets: l.Gets, Check: l.Check})
	ctx, cancel := context.WithCancel(bg)
	var running sync.WaitGroup
	running.Go(func() { f.Run(ctx) })
	m.stop = func() {
		cancel()
		running.Wait()
	}
}

// views returns the views of a mirror, and how far it saw room a's mark of t.
func (s *script) views(a args) (string, error) {
	var said string
	m := s.mirrors[a[0]]
	for i, v := range m.Views() {
		said += fmt.Sprintf("%s to %s with %d changes, ", s.since(v.Began.UnixMilli()), s.since(v.Until.UnixMilli()),
			v.Reach-v.From)
		if i == len(m.Views())-1 && v.Reach == s.c.Mem.Revision() {
			said += "up to now, "
		}
	}
	next, _ := m.Mark("a", "t")
	return fmt.Sprintf("%sa's mark %d", said, next), nil
}

// mirror has a mirror begin a view of all that etcd has.
func (s *script) mirror(a args) (string, error) {
	m := s.mirrors[a[0]]
	if m == nil {
		m = &seen{Mirror: mirror.New(100)}
		s.mirrors[a[0]] = m
	}
	if a.has("follows") {
		s.follow(m)
		return "", nil
	}
	epoch := value[record.Epoch](s.c, "epoch").Epoch
	if err := m.Attach(value[record.Identity](s.c, "identity"), epoch, s.c.Mem.Revision()); err != nil {
		return "", err
	}
	m.keys = map[string]bool{}
	m.see(s.c.Mem, false)
	m.BeginView(epoch, s.c.Mem.Revision(), s.now())
	return s.look(a)
}

// look has a mirror see what etcd has, and what it has no more.
func (s *script) look(a args) (string, error) {
	m, reach := s.mirrors[a[0]], s.c.Mem.Revision()
	if to := a.value("to"); to != "" {
		reach = s.backups[to]
	}
	m.see(s.c.Mem, true)
	m.Reached(reach, s.now().Add(duration(cmp.Or(a.value("until"), "1m")))) // after every beat
	return "", nil
}

func (m *seen) see(etcd *ledgertest.Fake, whole bool) {
	for _, key := range etcd.Keys(prefix) {
		m.keys[key] = true
	}
	for _, key := range slices.Sorted(maps.Keys(m.keys)) {
		kv := store.KV{Key: key, ModRevision: 1}
		var there bool
		if kv.Value, there = etcd.Value(key); !there {
			kv.ModRevision = 0
		}
		m.Saw(prefix, kv, whole)
	}
}

// disturb has a recover ask others than it means to, or something happen meanwhile.
func (s *script) disturb(cfg *recovery.Config, a args) {
	ask, asked, unbarred, confirmed := cfg.Ask, false, false, 0
	at, other, _ := strings.Cut(a.value("answers"), ":")
	other, late := strings.CutSuffix(other, ":late")
	silent, nth, _ := strings.Cut(a.value("silent"), ":")
	var mu sync.Mutex // they are asked at once
	cfg.Ask = func(ctx context.Context, seen record.SeenInstance, q record.Question,
		use record.UseMarks) (record.Memory, error) {
		mu.Lock()
		defer mu.Unlock()
		s.mu.Lock()
		s.asked[seen.Address]++
		s.mu.Unlock()
		if meanwhile := a.value("during"); meanwhile != "" && !asked {
			asked = true
			if said := s.do(strings.ReplaceAll(meanwhile, ":", " ")); said != "" {
				s.t.Errorf("during the recover: %s", said)
			}
		}
		if q.Barrier != nil && seen.Address == a.value("unbarred") && !unbarred {
			unbarred, q.Barrier = true, nil
		}
		if seen.Address == at && (!late || q.Barrier != nil) {
			seen.Address = other
		}
		if slices.Contains(a.list("away"), seen.Address) {
			seen.Address += ", which is away"
		}
		if q.Barrier != nil && seen.Address == silent {
			if confirmed++; confirmed == int(number(nth)) {
				return record.Memory{}, allocator.Errorf(allocator.Unavailable, "it fell silent")
			}
		}
		return ask(ctx, seen, q, use)
	}
}

// reported returns what a recover reports, and its error.
func (s *script) reported(r *recovery.Report, err error) string {
	said := fmt.Sprintf("answered %v, left %v, margin %d", r.Answered, r.LeftBefore, r.Margin)
	var more []string
	some := func(n int64, what string) {
		if n > 0 {
			said += fmt.Sprintf(", %s %d", what, n)
		}
	}
	some(r.Total-r.Margin, "and before")
	if r.Epoch == "" {
		some(r.Higher, "marks to raise")
	}
	some(r.Raised, "marks raised")
	some(r.Workers, "workers raised")
	some(r.Machines, "machine IDs put back")
	if len(r.Layout.Ranges) > 0 && !r.Layout.Equal(r.Stored.Layout) {
		more = append(more, fmt.Sprintf("layout %v, stored was version %d, known version %d", r.Layout.Ranges,
			r.Stored.Layout.Version, r.Known.Version))
	}
	for _, m := range r.Missing {
		name := s.names[m.Incarnation]
		if name == "" {
			name = string(m.ID)
		}
		more = append(more, fmt.Sprintf("missing %s: %s", name, m.Why))
	}
	for _, m := range r.Mirrors {
		switch {
		case m.Err != nil && len(m.Views) > 0:
			more = append(more, fmt.Sprintf("mirror %s has %d views: %v", m.Name, len(m.Views), m.Err))
		case m.Err != nil:
			more = append(more, fmt.Sprintf("mirror %s: %v", m.Name, m.Err))
		case len(m.Views) == 0:
			more = append(more, fmt.Sprintf("mirror %s has no view", m.Name))
		}
	}
	if len(r.AtLimit) > 0 {
		more = append(more, fmt.Sprintf("at their limits: %v", r.AtLimit))
	}
	if len(r.BeyondPeriod) > 0 {
		more = append(more, fmt.Sprintf("no ID left in this period: %v", r.BeyondPeriod))
	}
	if len(r.PutBack) > 0 {
		more = append(more, fmt.Sprintf("put back as deleted: %v", r.PutBack))
	}
	for _, bad := range r.Unreadable {
		more = append(more, "unreadable: "+bad.Error())
	}
	if !r.NotBefore.IsZero() {
		more = append(more, fmt.Sprintf("windows begin after %v: %s", r.NotBefore.Sub(s.now()), r.Waits))
	}
	if err != nil {
		more = append(more, failure(err))
	}
	slices.Sort(more)
	return strings.Join(append([]string{said}, more...), "\n  ")
}

// clocked is an instance whose etcd tells the script's time.
type clocked struct {
	*ledger.Instance
	s *script
}

// EtcdTime implements worker.Instance.
func (i clocked) EtcdTime(ctx context.Context) (time.Time, time.Duration, error) {
	if i.s.timeless {
		return i.Instance.EtcdTime(ctx)
	}
	return i.s.now(), time.Second, nil
}

// leaser returns what takes the workers of a process.
func (s *script) leaser(p *scripted) (*worker.Workers, error) {
	if p.workers == nil {
		cfg := worker.DefaultConfig()
		cfg.Now, cfg.AgreeClock, cfg.CallerWorkers = p.Now, p.agrees, p.callers
		cfg.Elapsed = func() time.Duration { return s.now().Sub(p.began) }
		if p.pinned > 0 {
			cfg.PinnedWindow = p.pinned
		}
		var err error
		if p.workers, err = worker.New(clocked{p.Instance, s}, cfg); err != nil {
			return nil, err
		}
	}
	return p.workers, nil
}

func (s *script) take(p *scripted, a args) (string, error) {
	workers, err := s.leaser(p)
	if err != nil {
		return "", err
	}
	r := worker.Request{Bits: int(number(a[1])), Tick: time.Millisecond, Caller: a.has("caller")}
	if pin := a.value("pin"); pin != "" {
		r.Pin = worker.PinTo(number(pin))
	}
	for key, to := range map[string]*time.Duration{"tick": &r.Tick, "age": &r.Age, "longest": &r.Longest} {
		if text := a.value(key); text != "" {
			*to = duration(text)
		}
	}
	w, err := workers.Take(bg, r)
	if err != nil {
		return "", err
	}
	p.taken[a[0]] = w
	said := s.window(w)
	if r.Pin != (worker.Pin{}) || r.Bits <= 2 {
		return fmt.Sprintf("%v, ", w.ID()) + said, nil
	}
	if again, is := s.workers[w.ID()]; is { // its number is random
		return again + " again, " + said, nil
	}
	s.workers[w.ID()] = a[0]
	return said, nil
}

// machines returns what gives the machine IDs of a process.
func (s *script) machines(p *scripted) *machine.Machines {
	if p.machines == nil {
		p.machines = machine.New(p.Ledger, p.Room(), "cosid")
		p.machines.Runs = func() time.Duration { return s.now().Sub(p.began) }
	}
	return p.machines
}

func client(a args) machine.Client {
	return machine.Client{Namespace: "ns", Instance: a[0], Stable: a.has("stable")}
}

func (s *script) distribute(p *scripted, a args) (string, error) {
	guard := time.Minute
	switch text := a.value("guard"); text {
	case "":
	case "forever":
		guard = machine.Forever
	default:
		guard = duration(text)
	}
	n, last, err := s.machines(p).Distribute(bg, client(a), int(number(a[1])), guard)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%d, in use at %s", n, s.since(last)), nil
}

// window returns the window that a process has.
func (s *script) window(w *worker.Worker) string {
	return fmt.Sprintf("%s to %s, due at %s", s.since(w.Window().From), s.since(w.Window().Until),
		s.since(w.RenewAt().UnixMilli()))
}

// stored returns the last window of a worker in etcd.
func (s *script) stored(id record.WorkerID) string {
	var last record.Worker
	keys := record.Keys(prefix)
	for _, room := range []allocator.Room{"a", "b", "c"} {
		if value, there := s.c.Mem.Value(keys.Window(room, id)); there {
			_, w, err := keys.DecodeWorker(store.KV{Key: keys.Window(room, id), Value: value})
			if err != nil {
				return err.Error()
			}
			last = last.Raised(w)
		}
	}
	return fmt.Sprintf("%s/%s's, %s to %s, by a clock of %s", last.Room, last.Instance, s.since(last.From),
		s.since(last.Until), s.since(last.Clock))
}
