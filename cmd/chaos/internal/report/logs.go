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
	"github.com/march-id/march/cmd/chaos/internal/record"
)

// leftBehind is how a room's message begins that says that a recover did not know
// of what it held: that must never be, but after a restore that nobody can see.
const leftBehind = "IDs may have been issued twice"

// leeway is how long before a restore and after its recover instances may still
// find out that something is wrong, and what a strict tag's hold is measured to.
const leeway = time.Second

// said is a line of a log as hclog writes it, and as far as it matters here.
type said struct {
	Level   string    `json:"@level"`
	Message string    `json:"@message"`
	Time    time.Time `json:"@timestamp"`
}

// logs looks for what processes of March, and callers, say for people to act on,
// and for what a runtime says that gives up; for that in the output of operators'
// commands, too. etcd's members are not ours.
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
		text, err := in.ReadString('\n') // and what a process that was killed left without an end
		if what := c.alarming(text); what != "" {
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

// calls counts the calls that failed. That March had a defect must never be, and
// that etcd went back, or a request that was well is invalid, only where etcd was
// restored.
func (c *check) calls() error {
	failed, err := record.ReadFailed(c.dir)
	if err != nil {
		return err
	}
	c.r.FailedCalls = make(map[string]int64)
	for _, f := range failed {
		c.r.FailedCalls[f.Kind] += f.Count
		switch f.Kind {
		case allocator.Internal.Error():
		case allocator.WentBack.Error(), allocator.Invalid.Error():
			if c.felt.meet(f.From, f.From) && c.felt.meet(f.To, f.To) {
				continue
			}
		default:
			continue
		}
		c.r.Calls.add(f.Count, fmt.Sprintf("%d failed as %s from %s to %s; %s: %s", f.Count, f.Kind, f.From.Format(stamp), f.To.Format(stamp), f.Who, f.Error))
	}
	return nil
}

// alarming says why a line must not be; empty where it may.
func (c *check) alarming(text string) string {
	if strings.HasPrefix(text, "panic:") || strings.HasPrefix(text, "fatal error:") {
		return "a process gave up"
	}
	var line said
	if !strings.HasPrefix(text, "{") || json.Unmarshal([]byte(text), &line) != nil {
		return ""
	}
	switch {
	case strings.HasPrefix(line.Message, leftBehind):
		if !slices.ContainsFunc(c.events, func(e record.Event) bool { return e.What == record.Restoring && e.Residual() }) {
			return "left behind by a recover"
		}
	case line.Level == "error" && !c.told.meet(line.Time, line.Time):
		return "an error, and etcd was not restored then"
	}
	return ""
}

// restores returns when an etcd that forgets was being restored, and a little more
// on both sides: told is from the restore to the end of march recover, felt until
// all were given IDs again. One that was never recovered from lasts to the end.
func restores(events []record.Event) (told, felt spans) {
	next := func(from int, what string) int {
		n := slices.IndexFunc(events[from:], func(e record.Event) bool { return e.What == what && e.Fault >= 0 }) // not of a pause, which is not of all
		if n < 0 {
			return len(events) - 1
		}
		return from + n
	}
	for i, e := range events {
		if e.What != record.Restoring || !e.Loses() {
			continue
		}
		recovered := next(i, record.Recovered)
		issuing := next(recovered, record.Issuing)
		from := e.Time.Add(-leeway)
		told = append(told, span{from, events[recovered].Time.Add(leeway)})
		felt = append(felt, span{from, events[issuing].Time.Add(leeway)})
	}
	return told.merged(), felt.merged()
}
