package sim_test

import "time"

// recoverTwice has operators recover twice in a row, and then an instance starts again. It may
// lease nothing between the two, and with etcd's roles it could not raise another room's mark.
// Every instance answers both, so none may count as left out: see checkRaise.
func (w *world) recoverTwice(d dice) {
	lane, p := w.lane(), w.victim(d, w.slots)
	if p == nil || !w.sound() {
		return
	}
	w.log("--- two recovers, and then %s starts again", p.id)
	if d.chance(2) {
		w.deny(p)
	}
	for range 2 {
		w.halt(d)
		w.recoverSoon()
		if !w.until(w.sound, lane) || !w.sleep(w.heal, d.between(0, time.Second), lane) {
			return
		}
	}
	p.crash()
	w.count("two recovers in a row", 1)
}
