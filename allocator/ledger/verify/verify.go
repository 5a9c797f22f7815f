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

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
)

const (
	// verifyPage is how many keys of a room are read at once, and verifyKeys
	// how many of all rooms: a key and its value have a kilobyte at most.
	verifyPage = 1000
	verifyKeys = 16_000
)

// Run reads a live cluster and checks what must hold in it: see DESIGN
// section 3. It reads every key, and reports the effect and the remedy of each unreadable one. It
// keeps one page of keys at a time in memory, and all layouts. A small cluster takes a few round
// trips. If the cluster could not be read to its end, Run returns an error and the problems found
// so far.
//
// A cluster changes while it is read. The marks of a tag are from one snapshot, which
// also shows the layout against which they are checked: the reading transaction
// compares the layout. If it is another one, the rest of the history is read, and then
// the page again. Different tags may be from different snapshots: no check spans
// two tags.
func Run(ctx context.Context, cluster *record.Cluster, opts Options) (Report, error) {
	v := &verification{
		cluster: cluster, page: cmp.Or(opts.PageSize, verifyPage), progress: opts.Progress,
		pagers:    make(map[string]*store.Pager),
		revisions: make(map[int64]allocator.Layout), windows: make(map[record.WorkerID][]window),
	}
	v.checker.add = v.add
	alarms := v.alarms(ctx)
	err := v.run(ctx)
	if lines := <-alarms; len(lines) > 0 {
		all := slices.Concat(lines, v.report.Problems)
		v.report.Problems = all[:min(len(all), MaxProblems)]
		v.report.More += int64(len(all) - len(v.report.Problems))
	}
	if err != nil && ctx.Err() != nil {
		err = fmt.Errorf("verify: %w", ctx.Err())
	}
	v.report.Layouts, v.report.Rooms = int64(len(v.checker.layouts)), int64(len(v.checker.ever))
	if versions := slices.Collect(maps.Keys(v.checker.layouts)); len(versions) > 0 {
		v.report.Reserved = int64(len(v.checker.layouts[slices.Max(versions)].Reserved))
	}
	return v.report, err
}

// alarms asks etcd for its alarms while the keys are read. The channel then has a problem for
// each. It has none if etcd does not answer, because the reads then fail too.
func (v *verification) alarms(ctx context.Context) <-chan []string {
	found := make(chan []string, 1)
	go func() {
		var lines []string
		status, err := v.cluster.Status(ctx)
		if err == nil && status.Corrupt {
			lines = append(lines, "etcd's members differ (alarm CORRUPT), and etcd takes neither reads nor writes: "+
				"no IDs are leased; next: `march status`")
		}
		if err == nil && status.NoSpace {
			lines = append(lines, "etcd is full, and takes no writes: no IDs are leased; next: `march status`")
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
	for _, part := range []func(context.Context) error{v.singles, v.tags, v.lists, v.strays} {
		if err := part(ctx); err != nil {
			return err
		}
	}
	return nil
}

// rooms returns the rooms of which marks are read. A transaction holds an operation
// for each; etcd takes maxOps.
func (v *verification) rooms() []allocator.Room {
	if len(v.checker.ever) > allocator.MaxRooms {
		return v.checker.ever[:allocator.MaxRooms] // the lists shrank, which was reported
	}
	return v.checker.ever
}

// underLayout reads gets in one snapshot that shows the layout up to which the
// history was read. If the layout has changed, it reads the rest of the history and
// calls gets again.
func (v *verification) underLayout(ctx context.Context,
	gets func(rooms []allocator.Room) []store.Op) (store.Answer, error) {
	for {
		unmoved := store.Absent(v.cluster.Keys.Layout())
		if v.layout.ModRevision != 0 {
			unmoved = store.Unchanged(v.layout)
		}
		answer, err := v.cluster.Read(ctx, store.Txn{If: []store.Cond{unmoved}, Then: gets(v.rooms())})
		if err != nil || answer.Succeeded {
			return answer, err
		}
		if err := v.history(ctx); err != nil {
			return store.Answer{}, err
		}
	}
}

// tags checks all tags, chunk by chunk. A chunk is the names from lo up to hi,
// exclusive; hi is empty for no bound.
func (v *verification) tags(ctx context.Context) error {
	for lo := ""; ; {
		tags, hi, err := v.chunk(ctx, lo)
		if err != nil {
			return err
		}
		for _, name := range slices.Sorted(maps.Keys(tags)) {
			v.checker.tag(name, *tags[name])
		}
		if v.progress != nil {
			v.progress(Progress{
				Tags: v.report.Tags, Marks: v.report.Marks, Eras: v.report.Eras, At: hi,
				Problems: int64(len(v.report.Problems)) + v.report.More,
			})
		}
		if lo = hi; hi == "" {
			return nil
		}
	}
}

// chunk reads the tags from lo on, as many as fit into a page of each list.
func (v *verification) chunk(ctx context.Context, lo string) (tags map[allocator.Tag]*tagState, hi string, err error) {
	k := v.cluster.Keys
	rooms := v.rooms()
	limit := max(1, min(v.page, verifyKeys/int64(len(rooms)+1)))
	pagers := []*store.Pager{v.pager(k.Tags())}
	for _, room := range rooms {
		pagers = append(pagers, v.pager(k.Marks(room)))
	}
	if hi, err = store.EndOfAll(ctx, pagers, lo, limit); err != nil {
		return nil, "", err
	}
	answer, err := v.underLayout(ctx, func(rooms []allocator.Room) []store.Op { // a new room perhaps
		ops := []store.Op{store.Within(k.Tags(), lo, hi)}
		for _, room := range rooms {
			ops = append(ops, store.Within(k.Marks(room), lo, hi))
		}
		return ops
	})
	if err != nil {
		return nil, "", err
	}
	tags = make(map[allocator.Tag]*tagState)
	for _, kvs := range answer.Got {
		for _, kv := range kvs {
			v.take(tags, kv)
		}
	}
	return tags, hi, nil
}

// take adds a mark, or settings, to the state of its tag.
func (v *verification) take(tags map[allocator.Tag]*tagState, kv store.KV) {
	key, value, err := v.cluster.Keys.Read(kv)
	t, isTag := value.(record.Tag)
	switch {
	case isTag && err == nil && !t.Deleted.IsZero():
		return
	case key.Kind == "tags":
		v.report.Tags++
	case key.Kind == "marks":
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
