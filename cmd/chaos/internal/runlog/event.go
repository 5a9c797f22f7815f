package runlog

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// The values of an Event's What.
const (
	// FaultBegan and FaultEnded enclose a fault; both have its number.
	FaultBegan = "fault began"
	FaultEnded = "fault ended"
	// Issuing follows FaultEnded: all instances issue IDs again, after Took. Limit is the
	// allowed Took.
	Issuing = "issuing"
	// CutOff has the number of failed calls, Failed, after the end of a cut-off that was
	// shorter than the reserve.
	CutOff = "cut off"
	// Migration, Operator: a migration began or ended; an operator did something.
	Migration = "migration"
	Operator  = "operator"
	// Restoring: etcd is down, to come back; Restored: it answers again. Halted: the epoch was
	// found halted, Took after that, with the IDs issued in between; Recovered: march recover
	// ran.
	Restoring = "restoring"
	Restored  = "restored"
	Halted    = "halted"
	Recovered = "recovered"
	// Used: an operator used the feature Kind. Moved: the move Kind was made. Both are words of the table in
	// docs/proof.md.
	Used  = "used"
	Moved = "moved"
	// Healed: all faults have ended and all rooms lease, Took after the last fault.
	Healed = "healed"
	// Ended is the last event; Revision is etcd's at that time.
	Ended = "ended"
	// Process: a process ended by itself, or was started again.
	Process = "process"
)

// Event is a change of the cluster, or a measurement.
type Event struct {
	Time time.Time `json:"time"`
	What string    `json:"what"`
	// Fault is a fault's number, from 1 on; Kind its kind, Target what it hit.
	Fault  int    `json:"fault,omitempty"`
	Kind   string `json:"kind,omitempty"`
	Target string `json:"target,omitempty"`
	Detail string `json:"detail,omitempty"`
	// Took and Limit: see the events that have them. In nanoseconds.
	Took  time.Duration `json:"took,omitempty"`
	Limit time.Duration `json:"limit,omitempty"`
	// Failed and IDs count calls and IDs.
	Failed int64 `json:"failed,omitempty"`
	IDs    int64 `json:"ids,omitempty"`
	// Revision and ClusterID are etcd's.
	Revision  int64  `json:"revision,omitempty"`
	ClusterID string `json:"cluster_id,omitempty"`
	// Violation, if set, names the broken promise: the run failed.
	Violation string `json:"violation,omitempty"`
}

// Events writes the events of a run. Its methods are safe for concurrent use.
type Events struct{ *Writer }

// CreateEvents makes the file of events of the run in dir.
func CreateEvents(dir string) (*Events, error) {
	w, err := create(dir, Faults)
	return &Events{w}, err
}

// Add writes an event, with the present time if it has none. Close returns its errors.
func (e *Events) Add(event Event) {
	if event.Time.IsZero() {
		event.Time = time.Now()
	}
	_ = e.Writer.Add(event)
}

// ReadEvents reads the events of the run in dir.
func ReadEvents(dir string) (events []Event, err error) {
	_, err = Read(filepath.Join(dir, Dir, Faults), func(e Event) error {
		events = append(events, e)
		return nil
	})
	return events, err
}

// runFile describes the run, in its directory.
const runFile = "run.json"

// Run describes a run.
type Run struct {
	Seed     uint64        `json:"seed"`
	Time     time.Duration `json:"time"`
	Started  time.Time     `json:"started"`
	March    string        `json:"march"` // versions
	Etcd     string        `json:"etcd"`
	Go       string        `json:"go"`
	Cluster  string        `json:"cluster"` // its name in etcd
	Members  []string      `json:"members"` // of etcd
	Rooms    []RunRoom     `json:"rooms"`
	Consoles []string      `json:"consoles"`
	Tags     []string      `json:"tags"`
	Times    []string      `json:"times,omitempty"` // tags of time-ordered IDs
	// how long a strict tag's IDs may be used after its layout was last confirmed
	Hold  time.Duration `json:"hold"`
	Kinds []string      `json:"kinds"` // of faults that the schedule draws from
	// Rows are the features of the table in docs/proof.md by what shows that they were in use: a tag, an instance and
	// its worker's number, a way of calling (a client's, a door's), a kind of failed call and its tag, or the feature
	// itself, if an operator uses it. Columns are the moves of the table; none if the user chose the faults. A long
	// run has all of both.
	Rows    map[string]string `json:"rows,omitempty"`
	Columns []string          `json:"columns,omitempty"`
}

// RunRoom is a room of a run.
type RunRoom struct {
	Name      string   `json:"name"`
	Instances []string `json:"instances"`
}

// Write writes r into the run's directory.
func (r Run) Write(dir string) error {
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, runFile), append(b, '\n'), 0o640)
}

// ReadRun reads the description of the run in dir.
func ReadRun(dir string) (Run, error) {
	b, err := os.ReadFile(filepath.Join(dir, runFile))
	if err != nil {
		return Run{}, err
	}
	var r Run
	if err := json.Unmarshal(b, &r); err != nil {
		return Run{}, fmt.Errorf("%s: %w", runFile, err)
	}
	return r, nil
}
