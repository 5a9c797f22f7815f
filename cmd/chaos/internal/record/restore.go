package record

// What Restoring and the events after it say of a restore: Kind is the way in
// which etcd came back, Target what became of the rooms meanwhile. These are the
// ones that an oracle must know.
const (
	OneCopiedBack   = "one copied back"
	TwoCopiedBack   = "two copied back"
	ForceNewCluster = "force-new-cluster"

	WithoutJournal = "restarted without journal"
)

// Loses reports whether etcd forgets by a restore like that of e: one member of
// three that does so is told again by the others.
func (e Event) Loses() bool { return e.Kind != OneCopiedBack }

// Residual reports whether nobody can see a restore like that of e, as the README
// says: cluster ID, term and index stay, and all memory is lost. IDs may come
// twice by it.
func (e Event) Residual() bool {
	return e.Target == WithoutJournal && (e.Kind == TwoCopiedBack || e.Kind == ForceNewCluster)
}
