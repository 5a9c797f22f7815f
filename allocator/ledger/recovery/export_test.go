package recovery

import "time"

// NewVersion is newVersion.
func NewVersion(known int64, at time.Time) int64 { return newVersion(known, at) }
