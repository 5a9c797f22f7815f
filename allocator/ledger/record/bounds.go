package record

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
