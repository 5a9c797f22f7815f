package machine

import "time"

// CountBy has m count silence by another clock.
func (m *Machines) CountBy(runs func() time.Duration) { m.runs = runs }
