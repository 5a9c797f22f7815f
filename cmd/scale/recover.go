package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/march-id/march/allocator"
)

// recovers measures `march recover` of etcd after a restore: with many tags of three rooms, and
// with ten.
func recovers(ctx context.Context, s sizes, add func(row)) error {
	for _, size := range []struct {
		tags   int
		halted float64 // the goal, in seconds
	}{{10, 3}, {s.tags, 30}} {
		leased := min(size.tags, 100_000)
		r, err := recoverOf(ctx, s.march, size.tags, leased)
		if err != nil {
			return err
		}
		what := fmt.Sprintf("recover, %d tags, %d leased in each of 3 rooms since the backup: ", size.tags, leased)
		add(row{
			what: what + "halted", measured: r.halted.Seconds(), goal: size.halted, unit: "s",
			note: fmt.Sprintf("%.3g s for the whole command, %d marks raised", r.took.Seconds(), r.raised),
		})
		add(row{what: what + "memory of the command", measured: float64(r.memory) / 1e6, goal: 500, unit: "MB"})
	}
	return nil
}

// recovered is the measurement of a recover.
type recovered struct {
	halted time.Duration // from its own halt to the new epoch
	took   time.Duration // the command
	memory int64         // the command's peak, in bytes
	raised int64         // marks
}

// recoverOf makes a cluster of three rooms with a number of tags, all leased. The rooms lease
// some of them again after a backup; then it restores that backup, and recovers.
func recoverOf(ctx context.Context, march string, tags, leased int) (r recovered, err error) {
	c, err := restored(ctx, march, tags, leased)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	return c.recover(ctx)
}

// restored returns a cluster of three rooms. Its etcd has gone back to a backup from before
// each instance leased some of the tags again.
func restored(ctx context.Context, march string, tags, leased int) (_ *cluster, err error) {
	rooms := []allocator.Room{"a", "b", "c"}
	c, err := leasedCluster(ctx, march, tags, rooms...)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.close())
		}
	}()
	addresses, err := c.startRooms(ctx, rooms)
	if err != nil {
		return c, err
	}
	backup := filepath.Join(c.dir, "backup")
	if err := saveBackup(ctx, c.etcd.Address, backup); err != nil {
		return c, err
	}
	group, leasing := errgroup.WithContext(ctx)
	for _, address := range addresses {
		group.Go(func() error { return loadTags(leasing, address, leased) })
	}
	if err := group.Wait(); err != nil {
		return c, err
	}
	say("%d tags were leased again in each room", leased)
	if err := c.restore(ctx, backup); err != nil {
		return c, err
	}
	say("etcd was restored")
	return c, await(ctx, "an instance to halt leasing", func() (bool, error) {
		_, err := c.admin.Ledger.Refresh(ctx)
		_, halted := c.admin.Ledger.Halted()
		return halted, err
	})
}

// recover runs the command while the rooms run on.
func (c *cluster) recover(ctx context.Context) (r recovered, err error) {
	var out, log bytes.Buffer
	cmd := exec.CommandContext(ctx, c.march, "recover", "--etcd", c.etcd.Address, "--yes", "--output", "json")
	cmd.Stdout, cmd.Stderr = &out, &log
	began := time.Now()
	if err := cmd.Run(); err != nil {
		return r, fmt.Errorf("march recover: %w: %s%s", err, log.Bytes(), out.Bytes())
	}
	r.took = time.Since(began)
	var report struct {
		Answered []string `json:"answered"`
		Raised   int64    `json:"raised,string"`
		Halted   float64  `json:"halted_seconds"`
	}
	if err := json.Unmarshal(out.Bytes(), &report); err != nil {
		return r, err
	}
	if len(report.Answered) != len(c.rooms) || report.Raised == 0 {
		return r, fmt.Errorf("%d instances answered, and %d marks were raised: it shows nothing",
			len(report.Answered), report.Raised)
	}
	r.halted, r.raised = time.Duration(report.Halted*float64(time.Second)), report.Raised
	usage, ok := cmd.ProcessState.SysUsage().(*syscall.Rusage)
	if !ok {
		return r, errors.New("the system does not tell how much memory the command had")
	}
	r.memory = usage.Maxrss << 10
	return r, nil
}

// say prints the progress of a long measurement.
func say(format string, args ...any) {
	_, _ = fmt.Fprintf(os.Stderr, "  "+format+"\n", args...)
}
