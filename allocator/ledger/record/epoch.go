package record

import "time"

// Epoch says under which epoch leases are made, or that leasing is halted. Every lease
// compares its value as it was read.
type Epoch struct {
	Epoch string `json:"epoch,omitempty"` // 32 hex digits; empty while leasing is halted
	// MarginTotal is the margin of all recovers so far, in steps. In a halt it is the
	// total of the epoch that the halt stopped.
	MarginTotal int64 `json:"margin_total,string,omitempty"`
	// Layout is the version of the layout that the recover put in force with the epoch; 0
	// in the first epoch of a cluster.
	Layout int64 `json:"layout,string,omitempty"`
	// NotBefore is when windows of workers may begin, Unix ms: a recover went on without
	// an instance, whose windows end before that. 0 where none was left out so far. In a
	// halt it is that of the epoch that the halt stopped. It only grows.
	NotBefore int64 `json:"not_before,string,omitempty"`
	// Ended names the halt that the epoch ended; nil in the first epoch of a cluster.
	Ended  *EndedHalt `json:"ended,omitempty"`
	Halted *Halt      `json:"halted,omitempty"`
}

// format: an epoch with NotBefore changes which windows may be leased.
func (e *Epoch) format() int {
	if e.NotBefore != 0 {
		return timeFormat
	}
	return baseFormat
}

// Validate accepts an epoch that names neither what is in force nor what halts, for which
// NoEpoch is the error: a halt takes its margins over.
func (*Epoch) Validate() error { return nil }

// InForce returns the epoch that is in force, or that was before the halt.
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

// Halt says by which process or operator leasing was halted, why and when.
type Halt struct {
	By      string    `json:"by"`
	Why     string    `json:"why"`
	Time    time.Time `json:"time"`
	Nonce   string    `json:"nonce"`
	Stopped string    `json:"stopped,omitempty"` // the epoch that it stopped
}

// Answered lists the processes whose memory was taken by the recover that began
// the epoch. It has a key of its own, because every lease compares the epoch's value.
type Answered struct {
	kept
	Epoch        string   `json:"epoch"`
	Incarnations []string `json:"incarnations"`
}
