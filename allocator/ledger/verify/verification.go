package verify

import (
	"context"
	"errors"
	"fmt"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
)

// Report has the numbers of the checked objects, and the problems.
type Report struct {
	Layouts   int64 // in the history
	Rooms     int64 // that ever were
	Reserved  int64 // ranges that the layout keeps rooms out of
	Tags      int64 // with settings
	Marks     int64
	Eras      int64 // in the marks
	Instances int64 // registered
	Workers   int64 // of time-ordered IDs, that were ever taken

	Halt record.Halt // zero while leasing is not halted

	Settings    record.ClusterSettings
	Unconfirmed []record.InstanceID // that lease nothing before their marks are confirmed

	Problems []string // the first MaxProblems
	More     int64    // problems besides those
}

// MaxProblems is how many problems a report holds.
const MaxProblems = 1000

// Options are the settings of a check. The zero value is ready to use.
type Options struct {
	PageSize int64          // how many keys of a list are read at once; 0 stands for 1,000
	Progress func(Progress) // is called after each page; nil for nothing
	// Damage says of an unreadable key what is wrong, what that stops and what to do; nil for only the first.
	Damage func(*record.KeyError, record.KeyParts) string
}

// Progress is the progress of a check.
type Progress struct {
	Tags, Marks, Eras int64  // so far
	At                string // all names below this were checked
	Problems          int64
}

// verification is one run of Verify.
type verification struct {
	Options
	cluster *record.Cluster
	report  Report
	checker checker

	at     int64    // the revision that all is read at; 0 before the first answer
	layout store.KV // the key; no ModRevision: it is not there
	newest store.KV // the last key of the history

	revisions map[int64]allocator.Layout // of the history, by the revision at which each was written
	epochID   string                     // of the epoch in force, or of the one that a halt stopped
	windows   map[record.WorkerID][]window

	current int64  // the version of the layout; 0 where it cannot be read
	active  string // the ID of the migration that is under way, empty for none,
	runs    bool   // and that it is there
}

// gets reads keys at the revision of the check, which is that of its first answer.
func (v *verification) gets(ctx context.Context, ops ...store.Op) (store.Answer, error) {
	for _, op := range ops {
		op.Get.At = v.at
	}
	answer, err := v.cluster.Gets(ctx, ops...)
	switch {
	case errors.Is(err, store.ErrCompacted):
		err = allocator.Errorf(allocator.Unavailable, "etcd was compacted during the check: run it again: %w", err)
	case err == nil && v.at == 0:
		v.at = answer.Revision
	}
	return answer, err
}

// add adds a problem, of a bounded length.
func (v *verification) add(format string, args ...any) {
	v.problem("%s", record.Cut(fmt.Sprintf(format, args...)))
}

func (v *verification) problem(format string, args ...any) {
	if len(v.report.Problems) == MaxProblems {
		v.report.More++
		return
	}
	v.report.Problems = append(v.report.Problems, fmt.Sprintf(format, args...))
}

// unreadable adds a key that cannot be read.
func (v *verification) unreadable(key string, err error) {
	if v.Damage == nil {
		v.add("%v", err)
		return
	}
	v.problem("%s", v.Damage(record.Unreadable(key, err), v.cluster.Keys.Damage(key, v.current, v.active)))
}
