package record

import (
	"slices"
	"time"
)

// Epoch names the epoch under which leases are made, or says that leasing is halted. Every
// lease compares its value with the one that it read.
type Epoch struct {
	Epoch string `json:"epoch,omitempty"` // 32 hex digits; empty while leasing is halted
	// MarginTotal is the margin of all recovers so far, in steps. In a halt it is the total of
	// the epoch that the halt stopped, or in one of recover the largest that it knows.
	MarginTotal int64 `json:"margin_total,string,omitempty"`
	// Layout is the version of the layout that the recover put in force with the epoch; 0 in
	// the first epoch of a cluster.
	Layout int64 `json:"layout,string,omitempty"`
	// NotBefore is the earliest start of a worker's window, in Unix ms. A recover that leaves
	// an instance out sets it to a time when that instance's windows are over; 0 if none was
	// left out so far. A halt keeps the value of the epoch that it stopped. It only grows.
	NotBefore int64 `json:"not_before,string,omitempty"`
	// Ended names the halt that the epoch ended; nil in the first epoch of a cluster.
	Ended  *EndedHalt `json:"ended,omitempty"`
	Halted *Halt      `json:"halted,omitempty"`
	// MarginEnds say in which periods margins count. A halt keeps those of the epoch that it
	// stopped. Only a recover under formats of generation 2 writes them.
	MarginEnds []MarginEnd `json:"margin_ends,omitempty"`
}

// format: NotBefore changes which windows may be leased.
func (e *Epoch) format() int {
	if e.NotBefore != 0 {
		return timeFormat
	}
	return baseFormat
}

// Validate accepts an epoch that names neither an epoch in force nor a halt: a halt can still
// take over its margins. Other readers of such an epoch fail with NoEpoch.
func (e *Epoch) Validate() error { return Margins{e.MarginTotal, e.MarginEnds}.validate() }

// Margins returns the margins of all recovers so far. An epoch that has no ends of them has one
// all the same: a recover gives its layout a version of at least its clock in seconds.
func (e *Epoch) Margins() Margins {
	m := Margins{e.MarginTotal, slices.Clone(e.MarginEnds)}
	if len(m.Ends) == 0 && m.Total > 0 && e.Epoch != "" && e.Layout > 0 {
		at := versionsBegan.Add(time.Duration(min(e.Layout, latestVersion)) * time.Second)
		m = Margins{}.Grown(m.Total, at)
	}
	return m
}

// InForce returns the epoch in force, or the one that the halt stopped.
func (e *Epoch) InForce() string {
	if e.Halted != nil {
		return e.Halted.Stopped
	}
	return e.Epoch
}

// EndedHalt is the halt that a recover ended with a new epoch.
type EndedHalt struct {
	Nonce   string `json:"nonce"`
	Stopped string `json:"stopped"` // the epoch that the halt stopped
}

// Halt says which process or operator halted leasing, why and when.
type Halt struct {
	By      string    `json:"by"`
	Why     string    `json:"why"`
	Time    time.Time `json:"time"`
	Nonce   string    `json:"nonce"`
	Stopped string    `json:"stopped,omitempty"` // the epoch that the halt stopped
}

// Answered lists the processes whose memory the recover used that began the epoch. It has a key
// of its own, because every lease compares the epoch's value.
type Answered struct {
	kept
	Epoch        string   `json:"epoch"`
	Incarnations []string `json:"incarnations"`
}
