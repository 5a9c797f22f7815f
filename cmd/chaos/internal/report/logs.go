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

	"github.com/march-id/march/cmd/chaos/internal/record"
)

// leftBehind is how a room's message begins that says that a recover did not know
// of what it held: that must never be, but after a restore that nobody can see.
const leftBehind = "IDs may have been issued twice"

// leeway is how long before a restore and after its recover instances may still
// find out that something is wrong.
const leeway = time.Second

// told is a line of a log as hclog writes it, and as far as it matters here.
type told struct {
	Level   string    `json:"@level"`
	Message string    `json:"@message"`
	Time    time.Time `json:"@timestamp"`
}

// logs looks for what processes of March, and callers, say for people to act on,
// and for what a runtime says that gives up. etcd's members are not ours.
func (c *check) logs() error {
	paths, err := filepath.Glob(filepath.Join(c.dir, "logs", "*.log"))
	if err != nil {
		return err
	}
	for _, path := range paths {
		name := strings.TrimSuffix(filepath.Base(path), ".log")
		if slices.Contains(c.r.Run.Members, name) {
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
			c.r.Processes.add(1, fmt.Sprintf("%s.log, line %d, %s: %s", name, number, what, firstLine(text)))
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// alarming says why a line must not be; empty where it may.
func (c *check) alarming(text string) string {
	if strings.HasPrefix(text, "panic:") || strings.HasPrefix(text, "fatal error:") {
		return "a process gave up"
	}
	var line told
	if !strings.HasPrefix(text, "{") || json.Unmarshal([]byte(text), &line) != nil {
		return ""
	}
	switch {
	case strings.HasPrefix(line.Message, leftBehind):
		if !slices.ContainsFunc(c.events, func(e record.Event) bool { return e.What == record.Restoring && e.Residual() }) {
			return "left behind by a recover"
		}
	case line.Level == "error" && !c.restores.meet(line.Time, line.Time):
		return "an error, and etcd was not restored then"
	}
	return ""
}

// restores returns when an etcd that forgets was being restored: from the restore
// to the end of march recover, and a little more on both sides. One that was never
// recovered from lasts to the end.
func restores(events []record.Event) spans {
	var all spans
	for i, e := range events {
		if e.What != record.Restoring || !e.Loses() {
			continue
		}
		end := len(events) - 1
		if n := slices.IndexFunc(events[i:], func(e record.Event) bool { return e.What == record.Recovered }); n >= 0 {
			end = i + n
		}
		all = append(all, span{e.Time.Add(-leeway), events[end].Time.Add(leeway)})
	}
	return all.merged()
}
