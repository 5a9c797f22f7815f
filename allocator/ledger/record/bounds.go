package record

import "time"

// Every kind of key is bounded: by tags and rooms, by instances, or by one of
// these. docs/limits.md has the table.
const (
	// MaxEras is how many eras a mark keeps.
	MaxEras = 8
	// MaxLayouts, MaxMigrations and MaxAudits bound how many keys of the kind are kept, the
	// latest ones.
	MaxLayouts    = 1_000
	MaxMigrations = 1_000
	MaxAudits     = 100_000
	// MaxTokens bounds the tokens of a room, the latest ones, and MaxKept the segments that one stands for.
	MaxTokens = 1_000
	MaxKept   = 100_000
	// MaxConsoles bounds the processes of consoles, the latest ones.
	MaxConsoles = 100
	// AuditSlack is how many audit entries a process writes before it counts them
	// again: etcd visits every key that it counts. AuditReserve is how far below the
	// bound a process keeps them, so that the bound holds while 60 processes write.
	AuditSlack   = 16
	AuditReserve = 1_000
	// OverflowMost bounds how many further old keys one write removes, if races or a lower
	// bound left some.
	OverflowMost = 4
)

// RecoverVersions is the least distance between the layout version of a recover and all known
// versions.
const RecoverVersions = 1000

// RecoverVersion returns the layout version of a recover at a time, above the highest known
// version. It is at least the clock in seconds since 2026, so that the version of a recover that a
// later restore forgets does not come again. Uniqueness does not depend on the clock: leases
// compare the epoch.
func RecoverVersion(known int64, at time.Time) int64 {
	return max(known+RecoverVersions, int64(at.Sub(versionsBegan)/time.Second))
}

// versionsBegan is the time of version 0, and latestVersion the last one that is a time.
var versionsBegan = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

const latestVersion = 1 << 32
