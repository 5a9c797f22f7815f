package sim_test

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/march-id/march/allocator/ledger/store"
)

// crowd is how many processes come and go at once, and crowdHost is their host.
const (
	crowd     = 500
	crowdHost = "192.0.2.2:"
)

// crowdGone makes hundreds of instances register and vanish without a word: the remaining
// instances remember each as one that may have leased. Then leasing is halted, or etcd goes
// back. A recover asks them all, and none answers.
func (w *world) crowdGone(d dice) {
	lane := w.lane()
	if !w.sound() {
		return
	}
	w.log("--- %d instances register, and are gone", crowd)
	room := pick(d, w.rooms)
	key := func(i int) string { return fmt.Sprintf("/march/default/rooms/%s/gone-%d", room, i) }
	w.inPages(func(i int) store.Op {
		value := fmt.Sprintf(`{"format":2,"incarnation":"%032x","address":"%s%d","build":"","version":"1",`+
			`"started":"2027-01-01T00:00:00Z","hold":"1s"}`, d.Uint64(), crowdHost, i)
		return store.Op{Put: &store.Put{Key: key(i), Value: []byte(value)}}
	})
	on := w.sleep(w.heal, d.between(100*time.Millisecond, 3*time.Second), lane)
	w.inPages(func(i int) store.Op { return store.Op{Delete: key(i)} })
	if !on || !w.sound() {
		return
	}
	if w.mayRestore() && d.chance(2) {
		w.restore(d)
	} else {
		w.halt(d)
	}
	w.recoverSoon()
	w.until(w.sound, lane)
}

// inPages performs an operation for each process of the crowd, as many at once as etcd accepts.
func (w *world) inPages(op func(i int) store.Op) {
	const page = 100
	for from := 0; from < crowd; from += page {
		var txn store.Txn
		for i := range page {
			txn.Then = append(txn.Then, op(from+i))
		}
		if _, err := w.mem.Open().Txn(context.Background(), txn); err != nil {
			w.Errorf("an etcd without faults: %v", err)
		}
	}
}

// waitsFor returns how long the process at an address takes without answering.
func (w *world) waitsFor(ctx context.Context, l *link, address string) {
	if !strings.HasPrefix(address, crowdHost) {
		return
	}
	timer := time.NewTimer(align(l.toss("asks "+address).between(time.Millisecond, time.Second), l.lane))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
