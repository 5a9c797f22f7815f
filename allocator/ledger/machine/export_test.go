package machine

import "time"

// CountBy has m count silence by another clock.
func (m *Machines) CountBy(elapsed func() time.Duration) { m.elapsed = elapsed }
