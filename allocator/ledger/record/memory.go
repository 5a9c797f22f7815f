package record

import (
	"cmp"
	"errors"
	"slices"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/store"
)

// Memory is everything that one instance remembers. `march recover` asks instances for it.
type Memory struct {
	UUID         string // of the cluster
	Room         allocator.Room
	Name         allocator.Instance
	Incarnations []string // of the processes with this memory, in order
	Epochs       []string // the epochs of the instance, in order
	Version      int64    // the highest layout version,
	Latest       string   // the epoch in which Version was in force
	Layout       allocator.Layout
	// NarrowestRange and LargestBoundary are over all layouts that the instance knows of, 0 if
	// it knows of none.
	NarrowestRange, LargestBoundary int64
	Formats                         int   // the newest generation of stored formats that the instance saw turned on
	MarginTotal                     int64 // the largest of any epoch
	Rooms                           []allocator.Room
	Seen                            []SeenInstance
	SeenUnder                       string           // the epoch of Seen
	Marks                           []RememberedMark // of its own room, in the order of tags
	Workers                         []Lease          // its leased workers, with the latest end that may be in etcd
	NotBefore                       int64            // the latest of any epoch: see Epoch

	Barred   bool   // the instance accepted the barrier of the question,
	Unbarred string // or why it did not
	Sequence int64  // the present point of the memory: see Question.After
}

// ID returns the instance's name in the cluster.
func (m Memory) ID() InstanceID { return NewInstanceID(m.Room, m.Name) }

// RememberedMark is what an instance remembers of one mark.
type RememberedMark struct {
	Tag  allocator.Tag
	Next int64 // the least ID not yet leased, at least
	// Total is the margin total of the epoch of the lease that ends at Next, or of an earlier
	// one; 0 if that is not known. What the recovers up to it left free lies below Next.
	Total int64
}

// UseMarks receives some of an instance's remembered marks.
type UseMarks func(room allocator.Room, marks []RememberedMark) error

// SeenInstance is a process that was registered, with the address at which it answers
// operators' calls. A journal stores it as JSON.
type SeenInstance struct {
	Room        allocator.Room     `json:"room"`
	Name        allocator.Instance `json:"name"`
	Incarnation string             `json:"incarnation"`
	Address     string             `json:"address"`
	// Left is the revision at which the process was seen to leave in good order: it leased
	// nothing after that. 0 if that was not seen.
	Left int64 `json:"left,string,omitempty"`
}

// ID returns the instance's name in the cluster.
func (s SeenInstance) ID() InstanceID { return NewInstanceID(s.Room, s.Name) }

// SortMarks sorts marks by tag.
func (m Memory) SortMarks() {
	slices.SortFunc(m.Marks, func(a, b RememberedMark) int { return cmp.Compare(a.Tag, b.Tag) })
}

// Validate checks the names and numbers of a memory from outside: from a journal, or from
// another instance. Its errors are Invalid.
func (m Memory) Validate() error {
	var errs []error
	room := func(r allocator.Room) {
		_, err := allocator.ParseRoom(string(r))
		errs = append(errs, err)
	}
	instance := func(i allocator.Instance) {
		_, err := allocator.ParseInstance(string(i))
		errs = append(errs, err)
	}
	room(m.Room)
	instance(m.Name)
	for _, r := range m.Rooms {
		room(r)
	}
	for _, seen := range m.Seen {
		room(seen.Room)
		instance(seen.Name)
	}
	if m.Layout.Version != 0 {
		errs = append(errs, m.Layout.Validate())
	}
	if min(m.Version, m.MarginTotal, m.Sequence, m.NarrowestRange, m.LargestBoundary, m.NotBefore,
		int64(m.Formats)) < 0 {
		errs = append(errs, allocator.Errorf(allocator.Invalid, "layout version: %d, margin total: %d, sequence: %d, "+
			"narrowest range: %d, largest boundary: %d, not before: %d, formats: %d; allowed: 0 or more",
			m.Version, m.MarginTotal, m.Sequence, m.NarrowestRange, m.LargestBoundary, m.NotBefore, m.Formats))
	}
	if m.MarginTotal > MostMargin {
		errs = append(errs, allocator.Errorf(allocator.Invalid, "margin total: %d; allowed: up to %d", m.MarginTotal,
			int64(MostMargin)))
	}
	errs = append(errs, ValidateLeases(m.Workers))
	return errors.Join(append(errs, ValidateMarks(m.Marks))...)
}

// ValidateMarks checks marks from outside. Its errors are Invalid.
func ValidateMarks(marks []RememberedMark) error {
	for _, m := range marks {
		if _, err := allocator.ParseTag(string(m.Tag)); err != nil {
			return err
		}
		if m.Next < 0 || m.Total < 0 || m.Total > MostMargin {
			return allocator.Errorf(allocator.Invalid, "tag %s: next %d, margin total %d; allowed: 0 or more, 0 to %d",
				m.Tag, m.Next, m.Total, int64(MostMargin))
		}
	}
	return nil
}

// Question is the question of `march recover` to an instance.
type Question struct {
	UUID string // of the cluster: an instance of another one refuses to answer
	// Barrier, if set, asks the instance to lease nothing under any epoch that it has seen so
	// far.
	Barrier *Barrier
	// After asks only for marks that changed after a point of the instance's memory: the
	// Sequence of an earlier answer of the same process. 0 for all.
	After int64
}

// Barrier names the halt of one recover.
type Barrier struct {
	Nonce     string // of the halt
	ClusterID uint64 // of the etcd cluster that holds it
}

// SeenIn returns the processes that a registration names: the registered one, the earlier ones of
// its name whose memory it does not have, under an epoch, or under any epoch if that is empty, and
// those that left with it.
func (k Keys) SeenIn(kv store.KV, epoch string) (all []SeenInstance, err error) {
	key, err := k.Parse(kv.Key)
	if err != nil {
		return nil, err
	}
	var v Registration
	if err := Decode(kv, &v); err != nil {
		return nil, err
	}
	if epoch != "" {
		v.Under(epoch)
	}
	for _, incarnation := range v.Lost {
		all = append(all, SeenInstance{Room: key.Room, Name: key.Instance, Incarnation: incarnation,
			Address: v.Operators()})
	}
	s := SeenInstance{Room: key.Room, Name: key.Instance, Incarnation: v.Incarnation, Address: v.Operators()}
	if v.Leaving {
		s.Left = kv.ModRevision
		for _, s.Incarnation = range v.Covers {
			all = append(all, s)
		}
		s.Incarnation = v.Incarnation
	}
	return append(all, s), nil
}

// TrimSeen returns all with at most the given number of processes. Those that left go first, the
// oldest of them before others: no recover has to ask them.
func TrimSeen(all []SeenInstance, most int) []SeenInstance {
	drop := len(all) - most
	if drop <= 0 {
		return all
	}
	all = slices.DeleteFunc(slices.Clone(all), func(s SeenInstance) bool {
		if s.Left == 0 || drop == 0 {
			return false
		}
		drop--
		return true
	})
	return all[drop:]
}
