package ledger

import "github.com/march-id/march/allocator"

// accept decides whether what a transaction leased is ours. It is not where its
// revision is not above every revision that was seen before it was sent; where
// anything came up meanwhile by which etcd may have gone back in time, or
// `march recover` asked (a new generation); and where it did not come through
// the connection that was checked. It is leased and lost then: a gap. False
// without an error means that another try is due, which looks first.
func (i *Instance) accept(before moment, answer Answer) (bool, error) {
	l := i.ledger
	l.mu.Lock()
	defer l.mu.Unlock()
	t := &l.mu.timeline
	switch {
	case answer.Revision <= before.seen:
		t.suspect("etcd wrote at revision "+itoa(answer.Revision)+" after it had shown revision "+itoa(before.seen), nil)
		return false, allocator.Errorf(allocator.WentBack,
			"etcd wrote at revision %d after it had shown revision %d: it went back in time; nothing of this lease is used", answer.Revision, before.seen)
	case t.generation != before.generation:
		return false, nil
	case answer.Connection == 0 || answer.Sender != t.checked.by:
		t.checked = check{}
		return false, nil
	}
	return true, nil
}
