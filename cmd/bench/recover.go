package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/march-id/march/allocator"
)

// recovers measures `march recover` of etcd after a restore: with many tags of three rooms, and
// with ten.
func recovers(p *part) {
	for _, size := range []struct {
		tags   int
		halted float64 // the goal, in seconds
	}{{10, 3}, {p.tags, 30}} {
		leased := min(size.tags, 100_000)
		c := p.restored(size.tags, leased)
		r := c.recover()
		c.stopRooms()
		what := fmt.Sprintf("recover, %d tags, %d leased in each of 3 rooms since the backup: ", size.tags, leased)
		p.figure(row{what: what + "halted", goal: size.halted, atMost: true, unit: "s",
			note: fmt.Sprintf("%.3g s for the whole command, %d marks raised", r.took.Seconds(), r.Raised)}, r.Halted)
		p.figure(row{what: what + "memory of the command", goal: 500, atMost: true, unit: "MB"}, float64(r.memory)/1e6)
	}
}

// restored returns a cluster of three rooms. Its etcd has gone back to a backup from before
// each instance leased some of the tags again.
func (p *part) restored(tags, leased int) *processes {
	rooms := []allocator.Room{"a", "b", "c"}
	c := p.leased(tags, rooms...)
	addresses := c.startRooms(rooms...)
	backup := filepath.Join(c.dir, "backup")
	p.check(saveBackup(p.ctx, c.etcd.Address, backup))
	group, leasing := errgroup.WithContext(p.ctx)
	for _, address := range addresses {
		group.Go(func() error { return loadTags(leasing, address, leased) })
	}
	p.check(group.Wait())
	p.Logf("%d tags were leased again in each room", leased)
	c.restore(backup)
	p.Logf("etcd was restored")
	p.await("an instance to halt leasing", func() bool {
		_, err := c.admin.Ledger.Refresh(p.ctx)
		_, halted := c.admin.Ledger.Halted()
		return err == nil && halted
	})
	return c
}

// recovered is the measurement of a recover, and the report of the command.
type recovered struct {
	took   time.Duration // the command
	memory int64         // the command's peak, in bytes

	Answered []string `json:"answered"`
	Raised   int64    `json:"raised,string"`
	Halted   float64  `json:"halted_seconds"` // from its own halt to the new epoch
}

// recover runs the command while the rooms run on.
func (c *processes) recover() (r recovered) {
	var out, log bytes.Buffer
	cmd := exec.CommandContext(c.ctx, c.march, "recover", "--etcd", c.etcd.Address, "--yes", "--output", "json")
	cmd.Stdout, cmd.Stderr = &out, &log
	began := time.Now()
	if err := cmd.Run(); err != nil {
		c.Fatalf("march recover: %v: %s%s", err, log.Bytes(), out.Bytes())
	}
	r.took = time.Since(began)
	c.check(json.Unmarshal(out.Bytes(), &r))
	if len(r.Answered) != len(c.rooms) || r.Raised == 0 {
		c.Fatalf("%d instances answered, and %d marks were raised: it shows nothing", len(r.Answered), r.Raised)
	}
	usage, ok := cmd.ProcessState.SysUsage().(*syscall.Rusage)
	if !ok {
		c.Fatal("the system does not tell how much memory the command had")
	}
	r.memory = usage.Maxrss << 10
	return r
}
