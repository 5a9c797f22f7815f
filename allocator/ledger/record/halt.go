package record

import (
	"time"
)

// HaltRecord says which process or operator halted leasing, why and when.
type HaltRecord struct {
	By   string
	Why  string
	Time time.Time // by the clock of By
}

// InForce returns the epoch that is in force, or that was before the halt.
func (e *Epoch) InForce() string {
	if e.Halted != nil {
		return e.Halted.Stopped
	}
	return e.Epoch
}

// Record returns what an operator is told of the halt.
func (h *Halt) Record() HaltRecord { return HaltRecord{By: h.By, Why: h.Why, Time: h.Time} }
