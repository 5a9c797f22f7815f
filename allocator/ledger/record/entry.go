package record

import "github.com/march-id/march/allocator/ledger/store"

// Lasting reports whether a key holds lasting data, and not only the sign that an instance
// runs.
func (k Keys) Lasting(key string) bool { return !k.rowOf(key).passes }

// Kept reports whether a key, once written, is never deleted.
func (k Keys) Kept(key string) bool { return k.rowOf(key).kept }

// Entry is the decoded content of a key and its value, for programs that record a cluster's history and check it later.
// Only the record of its kind is set, and none if the key was deleted.
type Entry struct {
	KeyParts

	Epoch        *Epoch
	Layout       *Layout // the current one, or one of the history
	Stored       *Tag    // a living tag as it is stored
	Tombstone    *Tag    // a deleted one
	Mark         *Mark
	Registration *Instance
	Token        *Token
	Lease        *Lease // a worker
	Migration    *Migration
	Holder       *Holder
}

// Entry reads a key and its value. A key without a mod revision was deleted. Its errors are
// Internal.
func (k Keys) Entry(kv store.KV) (e Entry, err error) {
	if e.KeyParts, err = k.Parse(kv.Key); err != nil || kv.ModRevision == 0 {
		return e, err
	}
	_, value, err := k.Read(kv)
	switch v := value.(type) {
	case Epoch:
		e.Epoch = &v
	case Layout:
		v.Revision = kv.ModRevision
		e.Layout = &v
	case Tag:
		if err == nil && v.Deleted.IsZero() {
			e.Stored = &v
		} else if err == nil {
			e.Tombstone = &v
		}
	case Mark:
		e.Mark = &v
	case Instance:
		e.Registration = &v
	case Token:
		e.Token = &v
	case Worker:
		e.Lease = &Lease{WorkerID: e.Worker, Worker: v}
	case Migration:
		e.Migration = &v
	case Holder:
		e.Holder = &v
	}
	return e, err
}
