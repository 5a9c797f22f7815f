package sim_test

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/admin"
	"github.com/march-id/march/allocator/ledger/record"
)

// journalsRequired is the name, among the faults, of a cluster that requires journals:
// instances without their own lease nothing before an operator has confirmed their marks.
const journalsRequired = "journals required"

// require makes the cluster require journals.
func (w *world) require(ctx context.Context) {
	_, err := w.admin.UpdateSettings(ctx, func(s *record.ClusterSettings) error {
		s.RequireJournal = true
		return nil
	}, "simulation")
	if err != nil {
		w.Errorf("journals required: %v", err)
	}
	w.count(journalsRequired, 1)
}

// confirmations makes an operator confirm instances that wait for it, until the end.
func (w *world) confirmations(lane int) {
	d := w.dice("confirmations")
	for n := 1; w.sleep(w.end, d.between(time.Second, 15*time.Second), lane); n++ {
		w.confirm(d, w.link(fmt.Sprint("confirm#", n), w.lane()))
	}
}

// confirm confirms some of the waiting instances, if etcd has forgotten nothing since the last
// recover: an operator knows of every restore.
func (w *world) confirm(d dice, l *link) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	own := w.ledger(l)
	for _, key := range w.keys("rooms/") {
		waits := stored[struct{ Unconfirmed bool }](w, key).Unconfirmed
		if !waits || !w.sound() || d.chance(2) && !w.healed.Load() {
			continue
		}
		room, name, _ := strings.Cut(strings.TrimPrefix(key, "rooms/"), "/")
		err := admin.New(own, admin.DefaultConfig()).ConfirmInstance(ctx, allocator.Room(room),
			allocator.Instance(name), "simulation")
		w.log("--- %s: %s is confirmed: %v", l.name, name, kind(err))
		w.count("confirm: "+kind(err), 1)
		if err != nil && !w.expected(err) {
			w.Errorf("confirm %s: %v", name, err)
		}
	}
}
