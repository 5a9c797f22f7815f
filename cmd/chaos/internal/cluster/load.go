package cluster

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"strings"
	"sync"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/cmd/chaos/internal/proc"
	"github.com/march-id/march/cmd/chaos/internal/traffic"
)

// Load has the callers of a room.
type Load struct {
	*proc.Process
	Room allocator.Room

	command proc.Command
	work    sync.WaitGroup
	mu      struct {
		sync.Mutex
		report traffic.Report
		err    error
	}
}

func (c *Cluster) newLoad(room allocator.Room) *Load {
	l := &Load{Process: proc.New(c.logs(), "load-"+string(room)), Room: room}
	var instances, tags, times []string
	for _, s := range c.Instances {
		if s.Room == room {
			instances = append(instances, s.ID+"="+s.Reached)
		}
	}
	for _, tag := range c.Tags {
		tags = append(tags, string(tag))
	}
	for _, tag := range c.Times {
		times = append(times, string(tag))
	}
	l.command = proc.Command{Path: c.Chaos, Args: []string{"load",
		"--dir", c.Dir, "--room", string(room), "--instances", strings.Join(instances, ","), "--tags",
		strings.Join(tags, ","), "--times", strings.Join(times, ","),
		"--rate", fmt.Sprint(c.Rate / len(c.Rooms)), "--seed", fmt.Sprint(c.Seed)}}
	return l
}

func (l *Load) start() error {
	read, write, err := os.Pipe()
	if err != nil {
		return err
	}
	command := l.command
	command.Stdout = write
	err = errors.Join(l.Start(command), write.Close())
	if err != nil {
		return errors.Join(err, read.Close())
	}
	l.work.Go(func() { l.read(read) })
	return nil
}

// read takes reports until the process has ended.
func (l *Load) read(from *os.File) {
	defer func() { _ = from.Close() }()
	lines := bufio.NewScanner(from)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var r traffic.Report
		err := json.Unmarshal(lines.Bytes(), &r)
		l.mu.Lock()
		if err == nil {
			l.mu.report = r
		}
		l.mu.err = errors.Join(l.mu.err, err)
		l.mu.Unlock()
	}
}

func (l *Load) stop() error {
	running := l.Running()
	err := l.Stop(stopWithin)
	l.work.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	err = errors.Join(err, l.mu.err)
	if how := l.How(); !running || how != "exit status 0" {
		err = errors.Join(err, fmt.Errorf("%s ended with %q; see %s", l.Name, how, l.Log()))
	}
	return err
}

func (l *Load) kill() error {
	err := l.Kill()
	l.work.Wait()
	return err
}

// Counts returns the counts of all callers so far, by runlog.Who.
func (c *Cluster) Counts() map[string]traffic.Count {
	counts := make(map[string]traffic.Count)
	for _, l := range c.Loads {
		l.mu.Lock()
		maps.Copy(counts, l.mu.report.Callers)
		l.mu.Unlock()
	}
	return counts
}
