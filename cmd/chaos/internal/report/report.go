// Package report checks a run against everything that March promises, from the run's directory
// alone, and reports what the run was and how it ended.
//
// # The oracles
//
//   - No ID is issued twice: the IDs of each tag that callers were given are sorted. A duplicate
//     of each tag is planted in each check, and must be found.
//   - Each ID is of a segment that its instance said it leased (package history). So it
//     has a residue of the room's range under the layout of its lease. No caller has it
//     before the lease.
//   - IDs of one instance grow, per tag: an ID that was asked for after another had come
//     is higher. Of a tag with a strict order those of all instances of a room do, or of all
//     rooms: an ID is larger than each that was answered before its call began.
//   - After an instance has reported a layout, it answers no call that is sent later
//     with an ID of an older segment that this layout does not keep. A retract relies on
//     that.
//   - An ID of a tag with strict_retract is of a layout that was in force less than hold before
//     the ID was asked for. That is true of rooms and of the Go client, whatever they have
//     heard, and however long they were stopped.
//   - After an instance said that a tag is behind by its max_skew, and leased, it answers no call that is sent later
//     with an ID below what it said. One of each is planted, and must be found.
//   - A time-ordered ID has a worker that its instance had, by etcd's history, in a window
//     with all of its tick, whatever the clocks were.
//   - No two clients of CosId have one machine ID at a time, but for those that had one before a restore.
//   - etcd's own history keeps the rules of the protocol (package history). It has all
//     leases of the instances, and it goes to the end of the run. It went back in time
//     only when it was restored in a way by which it forgets.
//   - The times that were measured during the run are within their limits.
//   - No call fails as an internal error. Calls fail as invalid, or because etcd went
//     back, only while etcd is restored.
//   - No process of March panics. A process logs at level error only while etcd is
//     restored. No process ever logs that IDs may have been issued twice, except after a
//     restore that no process can see.
//
// # Weak runs
//
// A run with too few events shows nothing, however well it ended: it is weak, not passed.
package report

import (
	"time"

	"github.com/march-id/march/cmd/chaos/internal/runlog"
)

// Report describes a run and its end.
type Report struct {
	Verdict Verdict `json:"verdict"`

	Run runlog.Run `json:"run"`

	IDs      int64 `json:"ids"` // different ones that callers got
	Answers  int64 `json:"answers"`
	Segments int   `json:"segments"` // that instances leased
	TimeIDs  int64 `json:"time_ids"` // time-ordered ones that callers got
	Ordered  int64 `json:"ordered"`  // answers of tags with a strict order
	Skewed   int64 `json:"skewed"`   // answers of tags with max_skew, of instances that had been behind
	Windows  int   `json:"windows"`  // of workers, without renewals

	Machines   int            `json:"machines"` // machine IDs that clients of CosId had
	Layouts    int            `json:"layouts"`
	Migrations int            `json:"migrations"` // that ended
	Faults     map[string]int `json:"faults"`     // by kind
	// Rows and Columns count what showed the features and the moves of the table in docs/proof.md.
	Rows     map[string]int64 `json:"rows"`
	Columns  map[string]int64 `json:"columns"`
	Rooms    []Room           `json:"rooms"`
	Restores []Restore        `json:"restores,omitempty"`

	Transactions Transactions `json:"transactions"`
	Refill       struct {
		Calm   Times `json:"calm"`
		Faults Times `json:"faults"`
	} `json:"refill"`
	FailedCalls map[string]int64 `json:"failed_calls"` // by kind: see runlog.Answer
	Unissued    int64            `json:"unissued"`     // leased, and never given to a caller
	Skipped     int64            `json:"skipped"`      // of a room's range, below its marks, and never leased

	Duplicates  Finding `json:"duplicates"`
	WrongRoom   Finding `json:"wrong_residues"`
	NotLeased   Finding `json:"not_leased"`
	Early       Finding `json:"early"` // IDs that came before the lease of their segment
	Inversions  Finding `json:"inversions"`
	Retracted   Finding `json:"retracted"`
	Behind      Finding `json:"behind"`       // IDs further behind than max_skew allows
	NoWindow    Finding `json:"no_window"`    // time-ordered IDs of a worker that the instance did not have at their tick
	SameMachine Finding `json:"same_machine"` // machine IDs that two clients had at a time
	Stale       Finding `json:"stale"`        // IDs of a strict tag, longer than hold after their layout was replaced
	Rules       Finding `json:"rules"`        // of the protocol, broken in etcd's history
	Leases      Finding `json:"leases"`       // that instances logged and the history contradicts
	Measured    Finding `json:"measured"`     // promises that were measured during the run
	Calls       Finding `json:"calls"`        // that failed in a way that is not allowed
	Processes   Finding `json:"processes"`    // that gave up, or logged that a person must act
	Checker     Finding `json:"checker"`      // the oracles themselves
	Planted     int     `json:"planted"`
	Lives       int     `json:"lives"` // of etcd: one, and one for each restore
	HistoryGaps int     `json:"history_gaps"`

	// UnseenWindows is NoWindow in a run with gaps in its history: these windows may be in the
	// gaps, so it is no finding.
	UnseenWindows Finding `json:"unseen_windows"`

	Recovery Times    `json:"recovery"` // from the end of a fault until all callers get IDs
	WeakFor  []string `json:"weak,omitempty"`
}

// Room is a room's part.
type Room struct {
	Name    string        `json:"name"`
	IDs     int64         `json:"ids"` // given to callers, with those that came twice
	Silence time.Duration `json:"longest_silence"`
	At      time.Time     `json:"longest_silence_from"`
	last    time.Time     // of the last IDs
}

// Transactions counts the outcomes of leases' transactions, by the instances' logs.
type Transactions struct {
	OK      int `json:"ok"`
	Refused int `json:"refused"` // their conditions had changed
	Failed  int `json:"failed"`
	Applied int `json:"failed_but_applied"`
	GivenUp int `json:"refused_but_applied"` // sent twice, or the instance did not trust the answer
	Orphans int `json:"applied_for_ended"`   // the instance died before it could log anything
	Unseen  int `json:"not_seen_in_history"` // at the end of a life of etcd, or in a gap
}

// Restore is one time when etcd went back.
type Restore struct {
	Kind     string        `json:"kind"`
	Restored time.Time     `json:"restored"`
	Halted   bool          `json:"halted"`       // by an instance or a console that saw it
	After    time.Duration `json:"halted_after"` // the time from the restore to the halt
	IDs      int64         `json:"ids_until_halted"`
	from     time.Time     // when etcd was taken down for it: some members may answer, and be halted, before all do
}

// Times are the durations of some event.
type Times struct {
	Count int           `json:"count"`
	P50   time.Duration `json:"p50"`
	P99   time.Duration `json:"p99"`
	Most  time.Duration `json:"most"`
}

// Finding is something that must not happen.
type Finding struct {
	Count    int64    `json:"count"`
	Examples []string `json:"examples,omitempty"` // the first few
}

// examples bounds the examples of a Finding.
const examples = 10

func (f *Finding) add(n int64, example string) {
	f.Count += n
	if len(f.Examples) < examples {
		f.Examples = append(f.Examples, example)
	}
}

// named is a finding and its name.
type named struct {
	name string
	*Finding
}

func (r *Report) findings() []named {
	return []named{
		{"duplicates", &r.Duplicates},
		{"wrong residues", &r.WrongRoom},
		{"IDs of no lease", &r.NotLeased},
		{"IDs before their lease", &r.Early},
		{"inversions", &r.Inversions},
		{"IDs too far behind", &r.Behind},
		{"retracted IDs", &r.Retracted},
		{"IDs of no window", &r.NoWindow},
		{"stale IDs of strict tags", &r.Stale},
		{"machine IDs twice", &r.SameMachine},
		{"rules broken in etcd", &r.Rules},
		{"leases not borne out", &r.Leases},
		{"promises not kept", &r.Measured},
		{"calls failed wrongly", &r.Calls},
		{"panics and errors", &r.Processes},
		{"faults of the checker", &r.Checker},
	}
}

// Failures returns the findings with examples; none if the run shows what it should. The run
// may still be weak.
func (r *Report) Failures() []string {
	var all []string
	for _, f := range r.findings() {
		for _, example := range f.Examples {
			all = append(all, f.name+": "+example)
		}
	}
	return all
}

// Verdict is the end of a run.
type Verdict string

// The verdicts.
const (
	Passed Verdict = "passed"
	Weak   Verdict = "weak" // nothing is wrong, and too little happened to show anything
	Failed Verdict = "failed"
)

func (r *Report) verdict() Verdict {
	switch {
	case len(r.Failures()) > 0:
		return Failed
	case len(r.WeakFor) > 0:
		return Weak
	}
	return Passed
}

// Weak returns why the run shows too little.
func (r *Report) Weak() []string { return r.WeakFor }
