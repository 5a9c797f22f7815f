package ledger

import (
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/internal/pending"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
)

// A heartbeat is a plain key that its instance rewrites, by a compare-and-swap
// on the heartbeat before it and on the registration. If that fails, the instance
// reads both in the order of all writes, and finds out what happened:
//
//   - Both are its own, and not older than the last that it saw: an answer was
//     lost, or overtaken by another. It accepts them.
//   - The heartbeat has its incarnation and a counter that is not below the last
//     that it saw, but the instance did not send it: a copy of this process runs.
//     The instance stops.
//   - Anything else may come from an etcd that went back in time, so the instance
//     probes for that first. Under another epoch than the one that it was last
//     registered under, or while leasing is halted, it registers again over the keys.
//   - Without any evidence, a newer process of its name makes it stop. An instance
//     is newer than the one that it replaced, so the two do not displace each other
//     in turn.
//   - Otherwise it was forgotten. It drops all its segments, and registers anew.
//
// So an etcd that lost its data for a while stops no instance: the memory of a
// stopped instance would be lost.

const (
	// heartbeatEvery is how often an instance sends a heartbeat, while a cluster
	// has no more than heartbeatRate times as many instances as it has seconds.
	heartbeatEvery = 5 * time.Second
	// heartbeatRate is how many heartbeats a cluster writes in a second at most.
	heartbeatRate = 20
	// countEvery is how often an instance counts those that are registered.
	countEvery = time.Minute
)

// HeartbeatInterval returns how often an instance sends a heartbeat in a cluster
// with this many instances.
func HeartbeatInterval(instances int) time.Duration {
	return max(heartbeatEvery, time.Duration(instances)*time.Second/heartbeatRate)
}

// heartbeat is an instance's knowledge of its own heartbeats.
type heartbeat struct {
	kv        store.KV     // the last heartbeat that was seen in etcd
	by        store.Sender // that answered the last one that was sent
	seen      int64        // its counter
	nonces    []string     // of the heartbeats sent since seen: each of them may be in etcd, too
	instances int          // how many are registered
	counted   time.Time    // when they were counted
}

// next returns the value of the next heartbeat and its counter, from 1 on. The
// caller holds the lock.
func (i *Instance) next(now time.Time) (value []byte, counter int64) {
	b := &i.mu.beat
	if len(b.nonces) == 0 {
		b.nonces = []string{""}
	}
	nonce := record.RandomHex()
	b.nonces = append(b.nonces, nonce)
	counter = b.seen + int64(len(b.nonces)) - 1
	return record.Encode(&record.Heartbeat{Incarnation: i.incarnation, Counter: counter, Time: now, Nonce: nonce}),
		counter
}

// saw notes that a heartbeat was seen in etcd. The caller holds the lock.
func (b *heartbeat) saw(kv store.KV, counter int64) {
	if counter < b.seen {
		return // answers overtook each other
	}
	b.kv, b.nonces, b.seen = kv, b.nonces[counter-b.seen:], counter
}

// sent notes a heartbeat that was written under the epoch of epochSeq. The caller
// holds the lock.
func (i *Instance) sent(beat store.KV, counter, epochSeq int64) {
	i.mu.beat.saw(beat, counter)
	i.mu.epochSeq = max(i.mu.epochSeq, epochSeq)
}

// found returns the operations that read this instance's keys, and the epoch.
func (i *Instance) found() []store.Op {
	keys := i.ledger.keys
	return []store.Op{store.OpGet(keys.Registration(i.room, i.name)), store.OpGet(keys.Alive(i.room, i.name)),
		store.OpGet(keys.Epoch())}
}

// beating is a heartbeat to send, and the values that it replaces.
type beating struct {
	registration, known store.KV
	value               []byte
	counter             int64
	epochSeq            int64 // epochClock.epochSeq when it was made
	count               bool  // also count the instances
}

// toSend returns the next heartbeat. Its error means that the registration is no longer
// ours.
func (i *Instance) toSend() (b beating, err error) {
	now := i.ledger.now()
	i.mu.Lock()
	defer i.mu.Unlock()
	b = beating{
		registration: i.mu.kv, known: i.mu.beat.kv, epochSeq: i.ledger.before().epochSeq,
		count: time.Since(i.mu.beat.counted) >= countEvery,
	}
	b.value, b.counter = i.next(now)
	return b, i.mu.lost
}

// beaten notes that a heartbeat was written.
func (i *Instance) beaten(b beating, answer store.Answer) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.sent(store.KV{Key: b.known.Key, Value: b.value, ModRevision: answer.Revision}, b.counter, b.epochSeq)
	i.mu.beat.by = answer.Sender
	if b.count {
		i.mu.beat.instances, i.mu.beat.counted = int(answer.Counts[0]), time.Now()
	}
}

// takeStanding accepts the registration and the heartbeat that a refused heartbeat
// found, if this process wrote them, under the same epoch.
func (i *Instance) takeStanding(b beating, answer store.Answer) bool {
	var said pending.Lines
	defer said.Write(i.ledger.log)
	i.mu.Lock()
	defer i.mu.Unlock()
	what, err := i.examine(answer.Got[0], answer.Got[1])
	if err != nil || what != stands || i.mu.epochSeq != b.epochSeq ||
		answer.Got[0][0].ModRevision < i.mu.kv.ModRevision {
		return false
	}
	i.take(&said, answer.Got[0][0], answer.Got[1])
	return true
}

// takeOurs accepts the registration that a transaction showed, if it is this process's,
// and reports whether it is. Its error means that the registration is no longer ours.
func (i *Instance) takeOurs(found []store.KV) (bool, error) {
	var said pending.Lines
	defer said.Write(i.ledger.log)
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.mu.lost != nil {
		return false, i.mu.lost
	}
	var v record.Registration
	if len(found) == 0 || record.Decode(found[0], &v) != nil || v.Incarnation != i.incarnation ||
		found[0].ModRevision < i.mu.kv.ModRevision {
		return false, nil
	}
	i.take(&said, found[0], nil)
	return true, nil
}

// take accepts a registration and a heartbeat, which are ours; the heartbeat may be
// missing. The caller holds the lock.
func (i *Instance) take(said *pending.Lines, registration store.KV, beat []store.KV) {
	var is record.Registration
	if registration.ModRevision > i.mu.kv.ModRevision && record.Decode(registration, &is) == nil {
		i.learn(said, is)
	}
	i.mu.kv = registration
	if len(beat) > 0 {
		var v record.Heartbeat
		_ = record.Decode(beat[0], &v) // examine did
		i.mu.beat.saw(beat[0], v.Counter)
	}
}

// learn accepts changes that other processes made in this process's registration
// since it was last seen. The caller holds the lock.
func (i *Instance) learn(said *pending.Lines, is record.Registration) {
	i.mu.value.Rest = is.Rest
	var was record.Registration
	if record.Decode(i.mu.kv, &was) == nil && was.Unconfirmed && !is.Unconfirmed { // an operator did that, or we
		i.mu.value.Unconfirmed = false
		i.confirmMarks(said, "an operator")
	}
}

// finding is the state in which an instance found its keys.
type finding int

const (
	stands    finding = iota // both are as the instance wrote them
	missing                  // the registration, or the heartbeat, is missing, older, or an older process's
	displaced                // a newer process registered
	copied                   // a copy of this process sent a heartbeat
)

// examine returns the state of our keys. The caller holds the lock.
func (i *Instance) examine(registration, beat []store.KV) (finding, error) {
	if len(registration) == 0 {
		return missing, nil
	}
	var r record.Registration
	if err := record.Decode(registration[0], &r); err != nil {
		return missing, err
	}
	if r.Incarnation != i.incarnation {
		if r.Started.After(i.mu.value.Started) || r.Started.Equal(i.mu.value.Started) && r.Incarnation > i.incarnation {
			return displaced, nil
		}
		return missing, nil
	}
	var v record.Heartbeat
	if len(beat) == 0 || record.Decode(beat[0], &v) != nil || v.Incarnation != i.incarnation {
		return missing, nil // a key that cannot be read is overwritten
	}
	switch at := v.Counter - i.mu.beat.seen; {
	case at < 0:
		return missing, nil
	case at >= int64(len(i.mu.beat.nonces)) || v.Nonce != i.mu.beat.nonces[at]:
		return copied, nil
	}
	return stands, nil
}

// lose stores the reason for which the registration is no longer ours, and returns
// it.
func (i *Instance) lose(format string, args ...any) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.mu.lost == nil {
		i.mu.lost = allocator.Errorf(allocator.Refused, format, args...)
	}
	return i.mu.lost
}

func (i *Instance) replaced(by store.KV) error {
	var v record.Registration
	if err := record.Decode(by, &v); err != nil {
		return err
	}
	return i.lose("another process registered as instance %s of room %s at %s, from %s: "+
		"give every process a name of its own (--name)",
		i.name, i.room, v.Started.Format(time.RFC3339), v.Address)
}

func (i *Instance) runsTwice(beat store.KV) error {
	var v record.Heartbeat
	if err := record.Decode(beat, &v); err != nil {
		return err
	}
	return i.lose("instance %s of room %s runs twice: a copy of this process, of a cloned machine perhaps, "+
		"sent a heartbeat at %s: restart it under a name of its own (--name)",
		i.name, i.room, v.Time.Format(time.RFC3339))
}

// registered returns the registration as we know it.
func (i *Instance) registered() store.KV {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.mu.kv
}
