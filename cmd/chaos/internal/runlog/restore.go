package runlog

// The values by which Restoring and the events after it describe a restore: Kind is the way in
// which etcd came back, Target the fate of the rooms meanwhile. Only the values that an oracle
// must know are here.
const (
	OneCopiedBack   = "one copied back"
	TwoCopiedBack   = "two copied back"
	ForceNewCluster = "force-new-cluster"

	WithoutJournal = "restarted without journal"
)

// Loses reports whether etcd forgets by a restore like that of e. If one member of three
// forgets, the others restore its data.
func (e Event) Loses() bool { return e.Kind != OneCopiedBack }

// Residual reports whether no process can see a restore like that of e, as docs/restore.md
// says: cluster ID, term and index stay, and all memory is lost. IDs may be issued twice after
// it.
func (e Event) Residual() bool {
	return e.Target == WithoutJournal && (e.Kind == TwoCopiedBack || e.Kind == ForceNewCluster)
}
