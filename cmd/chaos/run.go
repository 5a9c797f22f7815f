package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/version"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/format"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/allocator/texts"
	"github.com/march-id/march/allocator/timeid"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/cmd/chaos/internal/cluster"
	"github.com/march-id/march/cmd/chaos/internal/disk"
	"github.com/march-id/march/cmd/chaos/internal/report"
	"github.com/march-id/march/cmd/chaos/internal/runlog"
	"github.com/march-id/march/cmd/chaos/internal/traffic"
)

// The processes of a run. One room has a single instance, which cannot hide behind another.
var (
	rooms = []cluster.Room{{Name: "a", Instances: 2}, {Name: "b", Instances: 2}, {Name: "c", Instances: 1},
		{Name: spare, Instances: 1}}
	tags  = []allocator.Tag{"order", "item", "user", strictTag}
	times = map[allocator.Tag]*marchv1.TimeTag{ // of time-ordered IDs
		"event": {Preset: "cosid"},
		"trace": {TimeBits: 31, WorkerBits: 4, SequenceBits: 20, Unit: durationpb.New(time.Second),
			EpochMs: ptr(int64(timeid.EpochCosId)), Rollback: marchv1.RollbackPolicy_ROLLBACK_POLICY_OFFSET},
		pinning: {TimeBits: 42, WorkerBits: 9, SequenceBits: 12, Order: marchv1.WorkerOrder_WORKER_ORDER_LAST,
			EpochMs: ptr(int64(timeid.EpochCosId))},
	}
	// others are asked for at a lower rate, and no promise of times is measured of them.
	others = map[allocator.Tag]*marchv1.Tag{
		"day":     {Period: &marchv1.Period{Unit: marchv1.PeriodUnit_PERIOD_UNIT_DAY, Digits: 10}},
		"invoice": {Format: ptr("prefix(INV-) | radix62(11)")},
		"secret":  {Format: ptr("opaque(" + keyName + ", 10^18) | decimal(18)")},
		// The least hold: an instance that is stopped for some seconds outlives its tenure.
		"serial": {StrictOrder: marchv1.StrictOrder_STRICT_ORDER_ROOM, TenureHold: durationpb.New(time.Second)},
		"global": {StrictOrder: marchv1.StrictOrder_STRICT_ORDER_CLUSTER, TenureHold: durationpb.New(time.Second),
			Home: "a"},
		traffic.Door: {},
		bounded:      {},
	}
)

// spare is the room that layouts have, lose and get back. No promise of times is measured of it.
const spare = "d"

// bounded is a tag with a quota, which some batches exceed.
const bounded allocator.Tag = "bounded"

// policy gives callers all rights, and a quota of one tag.
const policy = `grants:
  - subjects: ["*", anonymous]
    tags: [` + string(bounded) + `]
    roles: [issuer]
    quotas: {tag_ids_per_second: 60}
  - subjects: ["*", anonymous]
    roles: [admin]
`

// rows returns what shows which features of the table in docs/proof.md; see runlog.Run.
func rows(seed uint64) map[string]string {
	all := map[string]string{
		"order": "counter", string(strictTag): "strict retract", "serial": "ordered by room",
		"global": "ordered by cluster", "behind " + string(skewTag): "skew", "prescale": "prescale", "skip": "skip",
		"limit": "limit", "day": "period", "invoice": "format", "secret": "opaque", "event": "time tag, middle",
		"redis": "door of Redis", "leaf": "door of Leaf", "tinyid": "door of TinyId", "cosid": "door of CosId",
		allocator.TooMany.Error() + " " + string(bounded): "quota", "client": "client's lease",
	}
	if pins(seed) {
		all[string(pinning)], all[pinned+" 0"] = "time tag, last", "pinned worker"
	}
	return all
}

// moves returns the moves of that table which a run makes; none if the user has chosen its faults, which may make none.
func (c *config) moves() []string {
	if len(c.only) > 0 {
		return nil
	}
	all := []string{"retract", "expand", "shift", "switch", "new room", drained, lost, "reserve", "abort", "recover",
		"left out", "upgrade"}
	if !pins(c.seed) {
		all = append(all, "boundary")
	}
	return all
}

// pins reports whether a run has the tag with the worker last, and an instance with a worker of its own, and so no
// other boundary.
func pins(seed uint64) bool { return seed%2 == 0 }

// pinned is the instance with a worker of its own: number 0, as its room begins at residue 0.
const pinned = "a-0"

// pinning is a tag whose IDs have the worker last: while it is there, no migration changes the boundary.
const pinning allocator.Tag = "tail"

// keyName names the key of opaque texts.
const keyName = "chaos"

// strictTag is the tag with strict_retract: it stops rather than go on under a layout that was
// not confirmed recently.
const strictTag allocator.Tag = "ticket"

const (
	members, consoles = 3, 2
	startWithin       = 60 * time.Second
	healWithin        = 90 * time.Second
)

// torture makes a run and prints its verdict.
func (c *config) torture(ctx context.Context) error {
	if err := c.produce(ctx); err != nil {
		return c.broken(ctx, err)
	}
	return c.check(ctx, c.dir)
}

// broken checks, as far as it came, a run that broke by err, unless the user interrupted it. An
// ID may have come twice by then, or an oracle may see the cause of err.
func (c *config) broken(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return err
	}
	return errors.Join(err, c.check(ctx, c.dir))
}

// produce makes a run.
func (c *config) produce(ctx context.Context) (err error) {
	log, file, err := c.logger()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	if c.march == "" {
		_, _ = fmt.Fprintln(c.stderr, "building march")
		if c.march, err = build(ctx, c.dir); err != nil {
			return err
		}
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	events, err := runlog.CreateEvents(c.dir)
	if err != nil {
		return err
	}
	keys, err := record.NewKeys(clusterName)
	if err != nil {
		return err
	}
	key, keyFile, err := c.key()
	if err != nil {
		return err
	}
	written := make(map[allocator.Tag]*texts.Text)
	for tag, settings := range others {
		if strings.Contains(settings.GetFormat(), keyName) {
			settings.KeyCheck = ptr(key.CheckValue())
		}
		written[tag] = texts.New(settings.GetFormat(), settings.GetKeyCheck(), []format.Key{key})
	}
	timed, pin := slices.Sorted(maps.Keys(times)), pinned
	if !pins(c.seed) {
		timed, pin = slices.DeleteFunc(timed, func(tag allocator.Tag) bool { return tag == pinning }), ""
	}
	cl, err := cluster.New(cluster.Config{
		Keys: keys, Dir: c.dir, March: c.march, Previous: c.previous, Chaos: self, Rooms: rooms, Members: members,
		Consoles: consoles, Tags: tags, Times: timed, Others: slices.Sorted(maps.Keys(others)), Texts: written,
		Key: key, KeyFile: keyFile, Policy: policy, Pinned: pin, Rate: c.rate, Seed: c.seed, Events: events,
	})
	if err != nil {
		return errors.Join(err, events.Close())
	}
	d := newDriver(c, cl, events, log)
	if d.disk, err = disk.Mount(cl.DiskDir()); err != nil {
		log.Warn("the journals have no disk of their own: no fault fills it or has it hang", "error", err)
	}
	err = d.run(ctx)
	if d.disk != nil {
		_ = d.disk.Thaw() // a process that hangs there cannot be ended
	}
	err = errors.Join(err, d.close(), cl.Close(), events.Close())
	if d.disk != nil {
		err = errors.Join(err, d.disk.Close())
	}
	if err != nil {
		if ctx.Err() != nil {
			return errors.New("interrupted")
		}
		return err
	}
	return nil
}

// key makes a key of opaque texts, and its file.
func (c *config) key() (key format.Key, file string, err error) {
	secret := sha256.Sum256([]byte("chaos"))
	if key, err = format.NewKey(keyName, secret[:]); err != nil {
		return key, "", err
	}
	file = filepath.Join(c.dir, "opaque.key")
	return key, file, os.WriteFile(file, hex.AppendEncode(nil, secret[:]), 0o600)
}

// build builds march with its crash points.
func build(ctx context.Context, dir string) (string, error) {
	path := filepath.Join(dir, "bin", "march")
	cmd := exec.CommandContext(ctx, "go", "build", "-buildvcs=false", "-tags", "chaos", "-o", path,
		"github.com/march-id/march/cmd/march")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build ./cmd/march (or give --march): %w\n%s", err, out)
	}
	return path, nil
}

// run starts everything, hurts it, heals it, and stops it.
func (d *driver) run(ctx context.Context) error {
	if err := d.start(ctx); err != nil {
		return err
	}
	stopPrinting := d.progress(ctx)
	err := d.torment(ctx)
	if err == nil {
		err = d.heal(ctx)
	}
	stopPrinting()
	if err != nil {
		return err
	}
	return d.stop(ctx)
}

// start starts the cluster and waits until all instances issue IDs.
func (d *driver) start(ctx context.Context) error {
	d.say("starting")
	ctx, cancel := context.WithTimeoutCause(ctx, startWithin, fmt.Errorf("not within %v", startWithin))
	defer cancel()
	if err := d.describe(); err != nil {
		return err
	}
	if err := d.StartMembers(ctx); err != nil {
		return err
	}
	if err := d.RequireUsers(ctx); err != nil {
		return fmt.Errorf("etcd's users: %w", err)
	}
	d.follow()
	d.StartConsoles()
	if err := d.admin.init(ctx); err != nil {
		return err
	}
	d.StartRooms()
	for _, s := range d.Instances {
		if err := cluster.Poll(ctx, s.Name+" to be ready", func() bool { return d.ready(ctx, s) }); err != nil {
			return err
		}
	}
	d.StartLoads()
	began := time.Now()
	if late := d.awaitIssuing(ctx, began, nil, nil); late != "" {
		return fmt.Errorf("%s is given no IDs, before any fault", late)
	}
	return nil
}

// describe records the run's description.
func (d *driver) describe() error {
	r := runlog.Run{
		Seed: d.config.seed, Time: d.config.time, Started: time.Now(), Etcd: version.Version,
		Go: runtime.Version(), Cluster: clusterName, Rows: rows(d.config.seed), Columns: d.config.moves(),
	}
	builds := []string{d.March}
	if d.Previous != "" { // in the order in which servers run them
		builds = []string{d.Previous, d.March}
	}
	for i, program := range builds {
		out, err := exec.Command(program, "version").Output() //nolint:gosec // the caller's
		if err != nil {
			return fmt.Errorf("%s version: %w", program, err)
		}
		if builds[i] = strings.TrimSpace(string(out)); d.Previous != "" {
			builds[i] = program + ": " + builds[i]
		}
	}
	r.March = strings.Join(builds, ", then ")
	var err error
	if r.Hold, err = time.ParseDuration(cluster.Hold); err != nil {
		return err
	}
	for _, m := range d.Members {
		r.Members = append(r.Members, m.Name)
	}
	for _, room := range d.Rooms {
		rr := runlog.RunRoom{Name: string(room.Name)}
		for _, s := range d.Instances {
			if s.Room == room.Name {
				rr.Instances = append(rr.Instances, s.ID)
			}
		}
		r.Rooms = append(r.Rooms, rr)
	}
	for _, s := range d.Consoles {
		r.Consoles = append(r.Consoles, s.ID)
	}
	for _, tag := range slices.Concat(d.Tags, d.Others) {
		r.Tags = append(r.Tags, string(tag))
	}
	for _, tag := range d.Times {
		r.Times = append(r.Times, string(tag))
	}
	kinds, err := d.deck()
	if err != nil {
		return err
	}
	for _, f := range kinds {
		r.Kinds = append(r.Kinds, f.kind)
	}
	return r.Write(d.Dir)
}

// torment runs the lanes of faults and the operators until the time is over.
func (d *driver) torment(ctx context.Context) error {
	d.say("calm")
	if err := d.calm(ctx, 2*time.Second); err != nil {
		return err
	}
	d.mu.Lock()
	d.mu.began = time.Now()
	d.mu.Unlock()
	group, ctx := errgroup.WithContext(ctx)
	lanes, stop := context.WithCancel(ctx)
	if d.config.cell != nil {
		group.Go(func() error {
			defer stop()
			return d.oneCell(ctx)
		})
	} else {
		group.Go(func() error { return d.faults(ctx, lanes) })
		group.Go(func() error { return d.pauses(ctx, lanes) })
		group.Go(func() error {
			defer stop()
			d.last(lanes)
			return nil
		})
	}
	group.Go(func() error { return d.operate(ctx, lanes) })
	err := group.Wait()
	stop()
	return err
}

// last waits until the time is over. On a slow machine it waits longer, until enough has
// happened, but never more than five times as long.
func (d *driver) last(ctx context.Context) {
	if !store.Sleep(ctx, d.config.time) {
		return
	}
	bounded, cancel := context.WithTimeout(ctx, 4*d.config.time)
	defer cancel()
	_ = cluster.Poll(bounded, "", d.enough) // the report says what is missing
}

// enough reports whether as much happened as the report will require.
func (d *driver) enough() bool {
	kinds, err := deck(d.config.only)
	if err != nil {
		return true // the call that draws from the deck returns err
	}
	least := report.LeastOf(d.config.time, len(kinds))
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.injected.Load() >= int64(least.Faults) && len(d.mu.kinds) >= least.Kinds &&
		d.migrated.Load() >= int64(least.Migrations) && (d.config.time < report.FullLength ||
		!slices.ContainsFunc(d.config.moves(), func(kind string) bool { return !d.mu.moved[kind] }))
}

// stop ends everything cleanly: callers first.
func (d *driver) stop(ctx context.Context) error {
	d.say("stopping")
	if err := d.StopLoads(); err != nil {
		return err
	}
	if err := d.verify(ctx); err != nil {
		return err
	}
	if err := d.StopServers(); err != nil {
		return err
	}
	return d.ended(ctx)
}

// verify makes march itself check the state of etcd.
func (d *driver) verify(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	args := append([]string{"verify", "--etcd", strings.Join(d.Endpoints(), ",")}, d.AsOperator()...)
	out, err := exec.CommandContext(ctx, d.March, args...).CombinedOutput()
	if writeErr := os.WriteFile(filepath.Join(d.Dir, "verify.txt"), out, 0o640); writeErr != nil {
		return writeErr
	}
	if err != nil {
		d.note(runlog.Event{What: runlog.Operator, Detail: "march verify",
			Violation: fmt.Sprintf("march verify: %v: see verify.txt", err)})
	}
	return nil
}
