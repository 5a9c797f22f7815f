package main

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/cmd/chaos/internal/cluster"
	"github.com/march-id/march/cmd/chaos/internal/runlog"
	"github.com/march-id/march/internal/crash"
)

// The fate of the rooms while etcd goes back in time.
const (
	alive          = "alive"
	withJournal    = "restarted with journal"
	withoutJournal = runlog.WithoutJournal
)

// cell is a cell of the restore matrix.
type cell struct {
	way   wayBack
	rooms string
}

func (c cell) String() string { return c.way.name + ", rooms " + c.rooms }

// residual cells are those that no process can see, as docs/restore.md says: they may lead to
// duplicates.
func (c cell) residual() bool { return c.way.unseen && c.rooms == withoutJournal }

// cells are all cells of the matrix.
func cells() (all []cell) {
	for _, way := range waysBack() {
		for _, rooms := range []string{alive, withJournal, withoutJournal} {
			all = append(all, cell{way, rooms})
		}
	}
	return all
}

// restoreFaults take etcd back in time.
func restoreFaults() []fault {
	return []fault{{"restore etcd", "etcd goes back in time, in one of many ways; then march recover",
		func(ctx context.Context, d *driver, r *rand.Rand) (*injury, error) {
			return d.restoreCell(ctx, d.cell(r), r)
		}}}
}

// cell draws a cell for the next restore. The fates of the rooms take turns, and each has a recover at its first turn.
func (d *driver) cell(r *rand.Rand) (c cell) {
	fate := []string{alive, withoutJournal, withJournal}[(d.config.seed+d.restores)%3]
	for c = pick(r, cells()); c.residual() || c.rooms != fate || !c.way.loses && d.restores < 3; {
		c = pick(r, cells())
	}
	return c
}

// age is how long rooms lease after the backup. The backup lacks these leases.
const age = 3 * time.Second

// restoreCell goes through a cell of the matrix until etcd is back. The injury's end is the
// operators' work after that.
func (d *driver) restoreCell(ctx context.Context, c cell, r *rand.Rand) (*injury, error) {
	if err := d.holdPauses(ctx); err != nil { // a recover would ask a stopped process in vain
		return nil, err
	}
	released := false
	defer func() {
		if !released {
			d.hold.Unlock()
		}
	}()
	d.restores++
	dir, err := os.MkdirTemp(d.Dir, "backup-")
	if err != nil {
		return nil, err
	}
	if err := d.await(ctx); err != nil {
		return nil, err
	}
	if err := c.way.keep(ctx, d, dir); err != nil {
		return nil, fmt.Errorf("backup: %w", err)
	}
	store.Sleep(ctx, age+between(r, 0, 2*time.Second))
	if c.rooms != alive {
		for _, s := range d.Instances {
			if err := s.Down(); err != nil {
				return nil, err
			}
		}
	}
	if c.rooms == withoutJournal {
		if err := os.RemoveAll(d.JournalDir()); err != nil {
			return nil, err
		}
		for _, s := range d.Instances {
			d.journalLost[id(s)] = true
		}
	}
	if err := down(d.Members...); err != nil {
		return nil, err
	}
	d.note(runlog.Event{What: runlog.Restoring, Kind: c.way.name, Target: c.rooms})
	before := d.ids()
	if err := c.way.bring(ctx, d, dir); err != nil {
		return nil, fmt.Errorf("%v: %w", c, err)
	}
	restored := runlog.Event{What: runlog.Restored, Kind: c.way.name, Target: c.rooms}
	if s, err := d.Members[0].Status(ctx); err == nil {
		restored.Revision, restored.ClusterID = s.Header.GetRevision(), fmt.Sprintf("%x", s.Header.GetClusterId())
	}
	d.note(restored)
	released = true
	return &injury{target: "etcd", detail: c.String(), end: func(ctx context.Context) error {
		defer d.hold.Unlock()
		if err := d.goOn(ctx, c, before, r); err != nil {
			return err
		}
		return os.RemoveAll(dir) // copies of members are large, and a long run has many
	}}, nil
}

// ids is how many IDs all callers got so far.
func (d *driver) ids() (n int64) {
	for _, count := range d.Counts() {
		n += count.IDs
	}
	return n
}

// goOn is the operators' work once etcd is back: they wait for the halt, and run march recover.
func (d *driver) goOn(ctx context.Context, c cell, before int64, r *rand.Rand) error {
	defer func() {
		for _, room := range d.Rooms {
			d.touch(room.Name)
		}
	}()
	restored := time.Now()
	if c.rooms != alive && !c.way.moved { // elsewhere they could not start
		for _, s := range d.Instances {
			s.Keep(true)
		}
	}
	halted, err := d.awaitHalt(ctx, c)
	if err != nil {
		return err
	}
	e := runlog.Event{What: runlog.Halted, Kind: c.way.name, Target: c.rooms,
		Took: time.Since(restored), IDs: d.ids() - before}
	switch {
	case halted:
	case c.way.moved || !c.way.loses:
		e.What, e.Detail = runlog.Operator, "nothing to halt"
	case c.residual():
		e.What, e.Detail = runlog.Operator, "not seen, a residual risk"
	default:
		e.Violation = fmt.Sprintf("%v: leasing was not halted within %v", c, haltWithin)
	}
	d.note(e)
	if !halted && !c.way.moved {
		return nil
	}
	began := time.Now()
	if err := d.recover(ctx, c, r); err != nil {
		d.note(runlog.Event{What: runlog.Recovered, Kind: c.way.name, Target: c.rooms, Violation: err.Error()})
		return ctx.Err()
	}
	d.note(runlog.Event{What: runlog.Recovered, Kind: c.way.name, Target: c.rooms, Took: time.Since(began)})
	if c.rooms == withoutJournal {
		d.moved("left out")
	} else {
		d.moved("recover")
	}
	for _, s := range d.Instances {
		s.Keep(true)
	}
	return nil
}

// haltWithin bounds the wait for a halt: a refill comes within the reserve, and a killed
// process must start first.
const haltWithin = 20 * time.Second

// awaitHalt waits until the epoch is halted. If no halt must come, it waits only briefly.
func (d *driver) awaitHalt(ctx context.Context, c cell) (halted bool, err error) {
	within := haltWithin
	if c.way.moved || !c.way.loses {
		within = 3 * time.Second
	}
	waiting, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	client, err := d.Members[0].Etcd()
	if err != nil {
		return false, err
	}
	keys, err := record.NewKeys(clusterName)
	if err != nil {
		return false, err
	}
	_ = cluster.Poll(waiting, "", func() bool {
		asking, cancel := context.WithTimeout(waiting, time.Second)
		defer cancel()
		answer, err := client.Get(asking, keys.Epoch())
		if err != nil || len(answer.Kvs) != 1 {
			return false
		}
		kv := answer.Kvs[0]
		entry, err := keys.Entry(store.KV{Key: string(kv.Key), Value: kv.Value, ModRevision: kv.ModRevision})
		halted = err == nil && entry.Epoch != nil && entry.Epoch.Halted != nil
		return halted
	})
	return halted, ctx.Err()
}

// recover runs the command, and again if it failed, as the runbook says.
func (d *driver) recover(ctx context.Context, c cell, r *rand.Rand) error {
	args := append([]string{"recover", "--etcd", strings.Join(d.Endpoints(), ","), "--quiet", "--yes", "--wait", "3s",
		"--timeout", "3s", "--layout", "known"}, d.AsOperator()...)
	args = append(args, "--tls-ca", d.CA())
	for _, s := range d.Consoles {
		args = append(args, "--console", s.GRPC)
	}
	switch {
	case c.rooms == withoutJournal:
		var without []string
		for _, s := range d.Instances {
			without = append(without, id(s))
		}
		args = append(args, "--without", strings.Join(without, ","))
	case c.rooms == withJournal && c.way.moved:
		for _, s := range d.Instances {
			files, err := s.Journals()
			if err != nil {
				return err
			}
			for _, f := range files {
				args = append(args, "--journal", f)
			}
		}
	}
	var env []string
	for _, p := range crash.Points() { // the first try dies on its way, if it can
		if p.In == crash.Recover && r.IntN(2) == 0 {
			env = []string{fmt.Sprintf("MARCH_CRASH=%s:1", p.Name)}
		}
	}
	var last error
	for try := range recoverTries {
		cmd := exec.CommandContext(ctx, d.March, args...)
		cmd.Env = append(os.Environ(), env...)
		out, err := cmd.CombinedOutput()
		env = nil
		name := fmt.Sprintf("recover-%d-%d.txt", time.Now().Unix(), try)
		if writeErr := os.WriteFile(filepath.Join(d.Dir, "logs", name), out, 0o640); writeErr != nil {
			return writeErr
		}
		if err == nil {
			return nil
		}
		last = fmt.Errorf("march recover, %d times: %w; see logs/%s", try+1, err, name)
		if bytes.Contains(out, []byte("--margin")) { // no console saw what was lost
			args = append(args, "--margin", givenMargin)
		}
		for _, missing := range goOnWithout.FindAllSubmatch(out, -1) {
			if id := string(missing[1]); d.journalLost[id] { // an earlier process may be missed
				args = append(args, "--without", id)
			} else { // it may have been slow to answer: asked again, it must answer
				last = fmt.Errorf("march recover misses %s, which has its memory, %d times; see logs/%s",
					id, try+1, name)
			}
		}
		if !store.Sleep(ctx, time.Second) {
			break
		}
	}
	return last
}

// recoverTries is how often operators try.
const recoverTries = 6

// givenMargin is above the steps that an instance leases of a tag in any case of the matrix.
const givenMargin = "1000"

// goOnWithout finds the instances that march recover misses in its message.
var goOnWithout = regexp.MustCompile(`--without ([^\s:]+)`)
