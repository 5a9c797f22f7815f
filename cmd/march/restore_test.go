package main

import (
	"encoding/json"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/allocator/period"
	"github.com/march-id/march/allocator/timeid"
	"github.com/march-id/march/internal/programs"
)

// TestRestore runs testdata/restore/*.txt: each is a case of docs/restore.md, told as
// commands and what they print, with prose between them. Rooms and consoles are processes,
// etcd is a real one that really goes back. -rewrite writes what the commands print. Besides
// march's own commands there are:
//
//	cluster [FLAG...]       makes the layout a [0, 50) b [50, 100) mod 100, the tag order, the tag
//	                        parcel with a period, and the tag event of time-ordered IDs, and starts
//	                        the instances a-0 and b-0
//	start NAME [FLAG...]    starts an instance, or the console
//	kill NAME...            sends SIGKILL; freeze SIGSTOP, thaw SIGCONT, stop SIGTERM
//	issue N [NAME...]       takes IDs of each tag from each running instance until it has given N
//	lease [NAME...]         takes IDs of each tag from each running instance until it has leased
//	refused NAME [TEXT]     asks for IDs of order until none is given for a reason that contains TEXT,
//	                        and prints the reason
//	layout N ROOM=LO-UP...  changes the layout, and waits until all instances report it
//	age                     makes etcd's raft log as long as that of a cluster in use
//	backup                  saves a snapshot; restore [bump=N] [token=T] goes back to it
//	copy                    copies etcd's data directory; put-back [force] copies it back
//	damage KEY              writes a value that cannot be read under a key
//	file NAME               writes a file with the lines that follow
//	halted                  waits until leasing is halted
//	leases [NAME...]        waits until each running instance leases each tag in the epoch in force; of
//	                        time-ordered IDs it may say instead for how long a recover has them wait
//	registered NAME         waits until etcd has an instance's registration
//	announced               waits until etcd has the console's address
//	mirrored                waits until the console saw all that etcd granted so far
//	logged NAME TEXT        waits until a process has logged a text
//	beside COMMAND          runs a command of march without printing how many marks are raised: an instance
//	                        remembers a lease that was under way at a halt or a kill, too
//
// A command of march runs with the addresses of etcd and of the console. The name of an
// instance stands for its address after --room=, and for its journal after --journal=. Recover
// waits for no registrations unless --wait says so. No ID may come twice in a scenario.
func TestRestore(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/restore/*.txt")
	if err != nil || len(files) < 10 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".txt")
		t.Run(name, func(t *testing.T) {
			if !slices.Contains(differing, name) {
				programs.OnlyInAll(t, "of restores with processes")
			}
			t.Parallel()
			s := &scenario{processCluster: newProcessCluster(t)}
			datadriven.RunTest(t, file, s.run)
		})
	}
}

// differing are the scenarios that differ most from each other: which of instances, journals and a console know what
// etcd forgot, and what is recovered: all of it, or a part. The simulation's matrix has the rest, without processes.
var differing = []string{"left_out", "mirror", "required_journals", "restarted", "unreadable"}

// scenario is a cluster, and what its scenario goes back to.
type scenario struct {
	*processCluster
	backup string
}

// run does the commands of one block and returns what they print.
func (s *scenario) run(t *testing.T, d *datadriven.TestData) string {
	if d.Cmd == "file" {
		s.file(d.CmdArgs[0].Key, d.Input)
		return ""
	}
	said := s.do(d.Cmd, d.CmdArgs)
	for line := range strings.Lines(d.Input) {
		cmd, args, err := datadriven.ParseLine(line)
		if err != nil {
			d.Fatalf(t, "%v", err)
		}
		said += s.do(cmd, args)
	}
	return said
}

// do does one command and returns what it prints.
func (s *scenario) do(cmd string, cmdArgs []datadriven.CmdArg) string {
	s.Helper()
	args, value := make([]string, 0, len(cmdArgs)), make(map[string]string)
	for _, arg := range cmdArgs {
		args = append(args, arg.String())
		value[arg.Key] = strings.Join(arg.Vals, "")
	}
	switch cmd {
	case "cluster":
		s.init(args...)
		s.more()
	case "start":
		s.start(args[0], args[1:]...)
	case "kill", "stop", "freeze", "thaw":
		for _, name := range args {
			s.signal(name, map[string]syscall.Signal{
				"kill": syscall.SIGKILL, "stop": syscall.SIGTERM, "freeze": syscall.SIGSTOP, "thaw": syscall.SIGCONT,
			}[cmd])
		}
	case "issue":
		s.issue(s.number(args[0]), args[1:]...)
	case "lease":
		s.lease(args...)
	case "refused":
		return s.normal(s.refused(args[0], strings.Join(args[1:], " ")))
	case "layout":
		s.change(args)
	case "age":
		s.age()
	case "backup":
		s.backup = s.etcd.Backup(s)
	case "copy", "restore", "put-back":
		bump := uint64(s.number(value["bump"])) //nolint:gosec // a scenario's number
		s.restart(cmd, bump, value["token"], slices.Contains(args, "force"))
	case "damage":
		s.put(args[0], "damaged")
	case "halted":
		s.until("leasing is halted", s.halted)
	case "leases":
		s.leases(args...)
	case "registered":
		s.registered(args[0])
	case "announced":
		s.until("etcd has the console's address", s.announced)
	case "mirrored":
		s.mirrored()
	case "logged":
		s.logged(args[0], strings.Join(args[1:], " "))
	case "march":
		return s.normal(s.march(args))
	case "beside":
		return regexp.MustCompile(`(raised?)( +)\d+ marks?`).ReplaceAllString(s.normal(s.march(args)), "$1$2<n> marks")
	default:
		s.Fatalf("there is no command %s", cmd)
	}
	return ""
}

// more makes a tag with a period and one of time-ordered IDs: each case of a restore holds for these, too.
func (s *scenario) more() {
	s.Helper()
	parcel, event := record.DefaultTag(), record.DefaultTag()
	timed := record.NewTimeTag(timeid.Layout{TimeBits: 41, WorkerBits: 10, SequenceBits: 12, Unit: time.Millisecond})
	event.Time = &timed
	parcel.MaxStep, parcel.Period = 100_000, period.Period{Unit: period.Year, Digits: 12, Zone: "UTC"}
	_, err := s.admin.CreateTag(s.Context(), "parcel", parcel, "test")
	if err == nil {
		_, err = s.admin.CreateTag(s.Context(), "event", event, "test")
	}
	if err != nil {
		s.Fatal(err)
	}
	s.tags, s.timed = append(s.tags, "parcel"), "event"
}

// announced reports whether etcd has the address of a console.
func (s *scenario) announced() bool {
	s.Helper()
	answer, err := s.store.Txn(s.Context(), store.Txn{Then: []store.Op{store.OpGetPrefix("/march/default/consoles/")}})
	return err == nil && len(answer.Got[0]) > 0
}

// mirrored waits until the console's mirror has seen all up to now.
func (s *scenario) mirrored() {
	s.Helper()
	began := time.Now()
	s.until("the console saw all", func() bool {
		var report struct {
			Mirrors []struct {
				Views []struct{ Until time.Time }
			}
		}
		text, _, _ := strings.Cut(s.march([]string{"recover", "--output=json"}), "\n")
		if json.Unmarshal([]byte(text), &report) != nil || len(report.Mirrors) == 0 {
			return false
		}
		views := report.Mirrors[0].Views
		return len(views) > 0 && views[len(views)-1].Until.After(began)
	})
}

// restart does what etcd is stopped for.
func (s *scenario) restart(cmd string, bump uint64, token string, force bool) {
	s.Helper()
	switch cmd {
	case "copy":
		s.backup = s.etcd.CopyData(s)
	case "restore":
		s.etcd.Restore(s, s.backup, bump, token)
	case "put-back":
		s.etcd.PutBack(s, s.backup, force)
	}
}

// number returns a number as a scenario has it; none is 0.
func (s *scenario) number(text string) int64 {
	s.Helper()
	if text == "" {
		return 0
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		s.Fatal(err)
	}
	return n
}

// normal returns a text without the parts that differ from run to run.
func (c *processCluster) normal(text string) string {
	for name := range c.ports {
		text = strings.ReplaceAll(text, c.address(name), "<"+name+">")
	}
	text = strings.NewReplacer(c.etcd.Endpoint, "<etcd>", c.dir, "<dir>").Replace(text)
	for _, replace := range volatile {
		text = replace.what.ReplaceAllString(text, replace.with)
	}
	return strings.TrimSpace(text)
}

// volatile are the parts of outputs that differ from run to run.
var volatile = []struct {
	what *regexp.Regexp
	with string
}{
	{regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z`), "<time>"},
	{regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f-]{22}`), "<uuid>"},
	{regexp.MustCompile(`\b[0-9a-f]{32}\b`), "<id>"},
	{regexp.MustCompile(`process [0-9a-f]{8}\b`), "process <id>"},
	{regexp.MustCompile(`\b\w+@[\w.-]+`), "<user>"},
	// Which server sees first that etcd went back, and by what.
	{regexp.MustCompile("(?m)by (?:instance|console) \\S+ (at|since) <time>: .*?((?:; see `march recover`)?)$"),
		"by <server> $1 <time>: <reason>$2"},
	{regexp.MustCompile(`(?m)(process <id>: no answer).*$`), "$1"},
	{regexp.MustCompile(`(?m)^mirror +\S+ is no witness:.*\n`), ""}, // no console runs
	{regexp.MustCompile(`(saw all until <time>) \(revision \d+\)`), "$1"},
	{regexp.MustCompile(`, last heartbeat at <time>`), ""},
	{regexp.MustCompile(`\b\d+ eras?\b`), "<n> eras"},
	{regexp.MustCompile(`(?m)\b(devel|v\d+\.\d+\.\d+\S*)$`), "<build>"},
	{regexp.MustCompile(`took +\S+`), "took  <duration>"},
	{regexp.MustCompile(`\b\d{5,}\b`), "<number>"},
	{regexp.MustCompile(`   +`), "  "},
	{regexp.MustCompile(`(?m) +$`), ""},
}
