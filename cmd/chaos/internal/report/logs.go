package report

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/cmd/chaos/internal/runlog"
)

// orphaned begins a room's message that a recover did not know of segments which the room
// held. It must never appear, except after a restore that no process can see.
const orphaned = "IDs may have been issued twice"

// leeway is how long before a restore and after its recover instances may still find out that
// something is wrong. A strict tag's hold is measured with the same leeway.
const leeway = time.Second

// said has the fields of a line of a log, as hclog writes it, that matter here.
type said struct {
	Level   string    `json:"@level"`
	Message string    `json:"@message"`
	Time    time.Time `json:"@timestamp"`
}

// logs reads the logs of March's processes, of callers and of operators' commands, for messages
// on which people must act and for the last words of a runtime. It does not read the logs of
// etcd's members.
func (c *check) logs() error {
	paths, err := filepath.Glob(filepath.Join(c.dir, "logs", "*.*"))
	if err != nil {
		return err
	}
	for _, path := range paths {
		name := filepath.Base(path)
		if slices.Contains(c.r.Run.Members, strings.TrimSuffix(name, ".log")) {
			continue
		}
		file, err := os.Open(path)
		if err != nil {
			return err
		}
		err = c.log(name, file)
		if err = errors.Join(err, file.Close()); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	return nil
}

func (c *check) log(name string, file io.Reader) error {
	in := bufio.NewReaderSize(file, 1<<16)
	for number := 1; ; number++ {
		text, err := in.ReadString('\n') // and the rest of a killed process, without an end
		if what := c.alarming(name, text); what != "" {
			c.r.Processes.add(1, fmt.Sprintf("%s, line %d, %s: %s", name, number, what, firstLine(text)))
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// failed counts a call that failed. A defect in March must never be reported. An answer that etcd went back, or that a
// correct request is invalid, may come only to a call that was under way during a restore: it may come late.
func (c *check) failed(a runlog.Answer) {
	c.r.FailedCalls[a.Failed]++
	switch a.Failed {
	case allocator.Internal.Error():
	case allocator.WentBack.Error(), allocator.Invalid.Error():
		if c.felt.meet(a.Sent, a.Received) || c.late(a.Received, a.Received, func(room, id string) bool {
			return room == string(a.Room) && (a.Instance == "" || id == string(a.Instance))
		}) {
			return
		}
	default:
		return
	}
	c.r.Calls.add(1, fmt.Sprintf("%s: a call failed as %s at %s: %s",
		a.Who(), a.Failed, a.Received.Format(stamp), a.Error))
}

// alarming says why a line must not appear; empty if it may.
func (c *check) alarming(name, text string) string {
	if strings.HasPrefix(text, "panic:") || strings.HasPrefix(text, "fatal error:") {
		return "a process gave up"
	}
	var line said
	if !strings.HasPrefix(text, "{") || json.Unmarshal([]byte(text), &line) != nil {
		return ""
	}
	switch {
	case strings.HasPrefix(line.Message, orphaned):
		if !slices.ContainsFunc(c.events, func(e runlog.Event) bool {
			return e.What == runlog.Restoring && e.Residual()
		}) {
			return "left behind by a recover"
		}
	case line.Level == "error" && !c.told.meet(line.Time, line.Time) &&
		!c.late(line.Time, line.Time, func(room, id string) bool { return name == room+"."+id+".log" }):
		return "an error, and etcd was not restored then"
	}
	return ""
}

// late reports whether all of the time between two moments belongs to an accepted instance that
// went on then, after it was stopped within a restore: it learns only now that march recover
// ran, and until then it reports its old knowledge.
func (c *check) late(from, to time.Time, accept func(room, id string) bool) bool {
	for _, room := range c.r.Run.Rooms {
		for _, id := range room.Instances {
			if accept(room.Name, id) && slices.ContainsFunc(c.resumed[id], func(s span) bool {
				return !from.Before(s.from) && !to.After(s.to)
			}) {
				return true
			}
		}
	}
	return false
}

// resumed returns when instances went on that the lane of pauses had stopped within felt, each
// until it got IDs again.
func resumed(events []runlog.Event, felt spans) map[string]spans {
	all := make(map[string]spans)
	for i, e := range events {
		if e.What != runlog.FaultBegan || e.Fault >= 0 || !felt.meet(e.Time, e.Time) {
			continue
		}
		s := span{events[len(events)-1].Time, events[len(events)-1].Time}
		for _, later := range events[i:] {
			switch {
			case later.Fault != e.Fault:
			case later.What == runlog.FaultEnded:
				s.from = later.Time.Add(-leeway)
			case later.What == runlog.Issuing:
				s.to = later.Time.Add(leeway)
			}
		}
		all[e.Target] = append(all[e.Target], s)
	}
	return all
}

// restores returns the times of restores by which etcd forgets, with a margin on both sides:
// told is from the restore to the end of march recover, felt until all callers got IDs again. A
// restore without a recover lasts to the end.
func restores(events []runlog.Event) (told, felt spans) {
	next := func(from int, what string) int {
		// not of a pause, which does not concern all instances
		n := slices.IndexFunc(events[from:], func(e runlog.Event) bool { return e.What == what && e.Fault >= 0 })
		if n < 0 {
			return len(events) - 1
		}
		return from + n
	}
	for i, e := range events {
		if e.What != runlog.Restoring || !e.Loses() {
			continue
		}
		recovered := next(i, runlog.Recovered)
		issuing := next(recovered, runlog.Issuing)
		from := e.Time.Add(-leeway)
		told = append(told, span{from, events[recovered].Time.Add(leeway)})
		felt = append(felt, span{from, events[issuing].Time.Add(leeway)})
	}
	return told.merged(), felt.merged()
}
