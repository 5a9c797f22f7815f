// Package verify checks the keys of a cluster in etcd. It checks that every key can be
// read, that the history of layouts is whole, and that no two eras of a tag can have leased
// the same ID. It reads keys and values through packages store and record. It shares no
// code with the protocol (package ledger) that wrote them.
package verify

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
)

const (
	// verifyPage is how many keys of a list are read at once, verifyKeys how many of a tag and all rooms, and
	// migrationPage how many migrations: a key and its value have a kilobyte at most, a migration may have a megabyte.
	verifyPage    = 1000
	verifyKeys    = 16_000
	migrationPage = 16
	// attempts bounds how often a check begins anew because etcd was compacted meanwhile.
	attempts = 3
)

// Run reads a live cluster and checks what must hold in it: see DESIGN
// section 3. It reads every key at one revision, and reports the effect and the remedy of each unreadable one. It
// keeps one page of keys at a time in memory, and all layouts. A small cluster takes a few round
// trips. If the cluster could not be read to its end, Run returns an error and the problems found
// so far.
func Run(ctx context.Context, cluster *record.Cluster, opts Options) (report Report, err error) {
	alarms := alarms(ctx, cluster)
	opts.PageSize = cmp.Or(opts.PageSize, verifyPage)
	for range attempts {
		v := &verification{Options: opts, cluster: cluster, revisions: make(map[int64]allocator.Layout),
			windows: make(map[record.WorkerID][]window)}
		v.checker.add = v.add
		err = v.run(ctx)
		before := report
		report = v.report
		report.Layouts, report.Rooms = int64(len(v.checker.layouts)), int64(len(v.checker.ever))
		if versions := slices.Collect(maps.Keys(v.checker.layouts)); len(versions) > 0 {
			report.Reserved = int64(len(v.checker.layouts[slices.Max(versions)].Reserved))
		}
		if !errors.Is(err, store.ErrCompacted) {
			break
		}
		if len(before.Problems) > len(report.Problems) { // what an attempt found counts, where none reads all
			report = before
		}
	}
	if lines := <-alarms; len(lines) > 0 {
		all := slices.Concat(lines, report.Problems)
		report.Problems = all[:min(len(all), MaxProblems)]
		report.More += int64(len(all) - len(report.Problems))
	}
	if err != nil && ctx.Err() != nil {
		err = fmt.Errorf("verify: %w", ctx.Err())
	}
	return report, err
}

// alarms asks etcd for its alarms while the keys are read. The channel then has a problem for
// each. It has none if etcd does not answer, because the reads then fail too.
func alarms(ctx context.Context, cluster *record.Cluster) <-chan []string {
	found := make(chan []string, 1)
	go func() {
		var lines []string
		status, err := cluster.Status(ctx)
		if err == nil && status.Corrupt {
			lines = append(lines, "etcd's members differ (alarm CORRUPT), and etcd takes neither reads nor writes: "+
				"no IDs are leased. Next: `march status`")
		}
		if err == nil && status.NoSpace {
			lines = append(lines, "etcd is full, and takes no writes: no IDs are leased. Next: `march status`")
		}
		found <- lines
	}()
	return found
}

func (v *verification) run(ctx context.Context) error {
	if err := v.cluster.Attach(ctx); err != nil {
		damaged, is := errors.AsType[*record.KeyError](err)
		if !is {
			return err
		}
		v.unreadable(damaged.Key, damaged)
	}
	for _, part := range []func(context.Context) error{v.others, v.tags, v.strays} {
		if err := part(ctx); err != nil {
			return err
		}
	}
	return nil
}

// others checks all keys but those of tags. It reads the first pages of all kinds together: most have only one.
func (v *verification) others(ctx context.Context) error {
	k := v.cluster.Keys
	kinds := slices.DeleteFunc(k.Known(), func(is string) bool { // Attach has read the identity
		return is == k.Identity() || is == k.All(record.Tags) || is == k.All(record.Marks)
	})
	size := func(kind string) int64 {
		if kind == k.All(record.Migrations) {
			return min(v.PageSize, migrationPage)
		}
		return v.PageSize
	}
	ops := make([]store.Op, len(kinds))
	for at, kind := range kinds {
		if ops[at] = store.OpGet(kind); strings.HasSuffix(kind, "/") {
			ops[at] = firstPage(kind, size(kind))
		}
	}
	answer, err := v.gets(ctx, ops...)
	if err != nil {
		return err
	}
	for at, kind := range kinds {
		switch found := answer.Got[at]; {
		case len(found) == 0 && kind == k.Epoch():
			v.unreadable(kind, record.Gone(kind))
		default:
			if err := v.rest(ctx, kind, size(kind), found, v.take); err != nil {
				return err
			}
		}
		if kind == k.All(record.Layouts) {
			v.inForce()
		}
	}
	if v.active != "" && !v.runs {
		v.add("key %s: there is no migration %s. "+stops, k.ActiveMigration(), v.active)
	}
	return nil
}

// firstPage reads the first n keys of a list.
func firstPage(prefix string, n int64) store.Op {
	op := store.OpGetPrefix(prefix)
	op.Get.Limit = n
	return op
}

// rest calls use with the keys of a list: those that firstPage found, and, page by page, those after them.
func (v *verification) rest(ctx context.Context, prefix string, size int64, found []store.KV,
	use func(store.KV)) error {
	for _, kv := range found {
		use(kv)
	}
	if int64(len(found)) < size || !strings.HasSuffix(prefix, "/") {
		return nil
	}
	next := found[len(found)-1].Key[len(prefix):] + "\x00"
	return store.EachPage(ctx, v.gets, next, size, func(page []store.KV, _ string) error {
		for _, kv := range page {
			use(kv)
		}
		return nil
	}, prefix)
}

// stops is what a wrong name of the migration under way stops.
const stops = "It stops migrations: none goes on, and no other starts. Delete the key."

// take checks a key that is not one of a tag.
func (v *verification) take(kv store.KV) {
	k := v.cluster.Keys
	key, value, err := k.Read(kv)
	underWay := v.active != "" && kv.Key == k.Migration(v.active)
	switch v.runs = v.runs || underWay; key.Kind {
	case record.LayoutKey:
		v.layout = kv
	case record.Layouts:
		v.newest = kv
	case record.Registrations:
		v.report.Instances++
	case record.Windows, record.Workers:
		if _, counted := v.windows[key.Worker]; !counted {
			v.windows[key.Worker] = nil
			v.report.Workers++
		}
	}
	if err != nil {
		v.unreadable(kv.Key, err)
		return
	}
	switch value := value.(type) {
	case record.Epoch:
		v.epochID = value.InForce()
		if value.Epoch == "" && value.Halted == nil {
			v.unreadable(kv.Key, record.NoEpoch(kv.Key))
		} else if value.Halted != nil {
			v.report.Halt = *value.Halted
		}
	case record.ClusterSettings:
		v.report.Settings = value
	case record.ActiveMigration:
		v.active = value.Name
	case record.Layout:
		if key.Kind == record.LayoutKey {
			v.current = value.Layout.Version
			return
		}
		v.checker.version(value)
		v.revisions[kv.ModRevision] = value.Layout // also the revision of the key layout: one transaction wrote both
	case record.Instance:
		if value.Unconfirmed {
			v.report.Unconfirmed = append(v.report.Unconfirmed, value.ID())
		}
		v.checker.served(value.Room, value.Name, value.Version)
	case record.Worker:
		v.worker(kv.Key, key.Worker, value)
	case record.Migration:
		if underWay && value.State.Ended() {
			v.add("key %s: migration %s is %s. "+stops, k.ActiveMigration(), v.active, value.State)
		}
	}
}

// inForce checks the layout in force against the last of the history.
func (v *verification) inForce() {
	if v.layout.ModRevision == 0 {
		v.unreadable(v.cluster.Keys.Layout(), record.Gone(v.cluster.Keys.Layout()))
		return
	}
	r, err := record.DecodeLayout(v.layout)
	if err != nil {
		return // take has said so
	}
	r.Revision = v.layout.ModRevision
	v.checker.current(r)
	if own := v.cluster.Keys.LayoutAt(r.Layout.Version); v.newest.Key == own &&
		string(v.newest.Value) != string(v.layout.Value) {
		v.add("the layout in force differs from its own history, %s", own)
	}
}

// tags checks all tags, chunk by chunk: as many as fit into a page of each list.
func (v *verification) tags(ctx context.Context) error {
	lists := []string{v.cluster.Keys.All(record.Tags)}
	for _, room := range v.checker.ever[:min(len(v.checker.ever), allocator.MaxRooms)] { // see store.MaxOps
		lists = append(lists, v.cluster.Keys.In(room, record.Marks))
	}
	limit := max(1, min(v.PageSize, verifyKeys/int64(len(lists))))
	return store.EachPage(ctx, v.gets, "", limit, func(page []store.KV, end string) error {
		tags := make(map[allocator.Tag]*tagState)
		for _, kv := range page {
			v.takeTag(tags, kv)
		}
		for _, name := range slices.Sorted(maps.Keys(tags)) {
			v.checker.tag(name, *tags[name])
		}
		if v.Progress != nil {
			v.Progress(Progress{
				Tags: v.report.Tags, Marks: v.report.Marks, Eras: v.report.Eras, At: end,
				Problems: int64(len(v.report.Problems)) + v.report.More,
			})
		}
		return nil
	}, lists...)
}

// takeTag adds a mark, or settings, to the state of its tag.
func (v *verification) takeTag(tags map[allocator.Tag]*tagState, kv store.KV) {
	key, value, err := v.cluster.Keys.Read(kv)
	t, isTag := value.(record.Tag)
	switch {
	case isTag && err == nil && !t.Deleted.IsZero():
		return
	case key.Kind == record.Tags:
		v.report.Tags++
	case key.Kind == record.Marks:
		v.report.Marks++
	}
	if err != nil {
		v.unreadable(kv.Key, err)
		return
	}
	s, ok := tags[key.Tag]
	if !ok {
		s = &tagState{marks: make(map[allocator.Room]markState)}
		tags[key.Tag] = s
	}
	if isTag {
		s.settings = &t
		return
	}
	mark, _ := value.(record.Mark)
	v.report.Eras += int64(len(mark.Eras))
	s.marks[key.Room] = markState{Mark: mark, revision: kv.ModRevision}
}
