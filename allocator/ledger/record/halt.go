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

// Record returns what an operator is told of the halt.
func (h *Halt) Record() HaltRecord { return HaltRecord{By: h.By, Why: h.Why, Time: h.Time} }
