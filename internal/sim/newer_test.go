package sim_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
)

// Values of a newer version of the program: a field that this one keeps and ignores, and a
// format that it does not read.
const (
	newerField  = `,"newer":"<of a newer version>"}`
	knownFormat = `{"format":2,`
	newerFormat = `{"format":9,`
)

// newerKinds are kinds of values that may have fields of a newer version.
func newerKinds() []string { return []string{"tags/", "rooms/", "migrations/", "settings"} }

// newer makes a newer version of the program write some values: all with a new field, and
// perhaps one in a new format, until an operator has repaired it.
func (w *world) newer(d dice) {
	for _, kind := range newerKinds() {
		for _, key := range w.keys(kind) {
			if d.chance(2) && w.rewrite(key, func(v string) string {
				if strings.HasSuffix(v, newerField) {
					return v
				}
				return strings.TrimSuffix(v, "}") + newerField
			}) {
				w.log("--- a newer version writes %s", plain(key))
				w.count("values with a field of a newer version", 1)
				w.mu.Lock()
				w.mu.newer[key] = true
				w.mu.Unlock()
			}
		}
	}
	keys := w.keys(pick(d, newerKinds()))
	if len(keys) == 0 {
		return
	}
	key, lane := pick(d, keys), w.lane()
	if !w.rewrite(key, func(v string) string { return strings.Replace(v, knownFormat, newerFormat, 1) }) {
		return
	}
	w.mu.Lock()
	w.mu.unreadable["/march/default/"+key] = true
	w.mu.Unlock()
	w.count("values of a newer format", 1)
	until := w.log1("--- %s has a newer format for %v", plain(key), d.between(100*time.Millisecond, 10*time.Second))
	w.actors.Go(func() {
		w.sleep(w.heal, until, lane)
		w.repair()
	})
}

// repair rewrites all values in the format that this program reads.
func (w *world) repair() {
	for _, kind := range newerKinds() {
		for _, key := range w.keys(kind) {
			if w.rewrite(key, func(v string) string { return strings.Replace(v, newerFormat, knownFormat, 1) }) {
				w.log("--- %s is repaired", plain(key))
			}
		}
	}
}

// plain returns a key without its random parts.
func plain(key string) string {
	if strings.HasPrefix(key, "migrations/") {
		return "a migration"
	}
	return key
}

// rewrite writes a key anew if that changes its value, and reports whether it did.
func (w *world) rewrite(key string, change func(string) string) bool {
	key = "/march/default/" + key
	was, ok := w.mem.Value(key)
	now := change(string(was))
	if !ok || now == string(was) {
		return false
	}
	answer, err := w.mem.Open().Txn(context.Background(), store.Txn{
		If: []store.Cond{{Key: key, Value: was}}, Then: []store.Op{{Put: &store.Put{Key: key, Value: []byte(now)}}},
	})
	if err != nil {
		w.Errorf("an etcd without faults: %v", err)
	}
	return answer.Succeeded
}

// expected reports whether an error is one that faults and operators may cause.
func (w *world) expected(err error) bool { return expected(err) || w.unreadable(err) }

// unreadable reports whether an error says that a value of a newer version cannot be read.
func (w *world) unreadable(err error) bool {
	bad, ok := errors.AsType[*record.KeyError](err)
	w.mu.Lock()
	defer w.mu.Unlock()
	return ok && w.mu.unreadable[bad.Key]
}

// checkReadable checks that a lease which is done is not of a tag whose settings in etcd have
// an unknown format.
func (w *world) checkReadable(l *link, tag allocator.Tag) {
	if value, _ := w.mem.Value(fmt.Sprintf("/march/default/tags/%s", tag)); bytes.HasPrefix(value,
		[]byte(newerFormat)) {
		w.Errorf("%s, tag %s: it leased though the tag's settings are of a newer format", l.name, tag)
	}
	w.mu.Lock()
	was := len(w.mu.unreadable) > 0
	w.mu.Unlock()
	for _, kind := range newerKinds() {
		if !was {
			return
		}
		for _, key := range w.keys(kind) {
			if value, _ := w.mem.Value("/march/default/" + key); bytes.HasPrefix(value, []byte(newerFormat)) {
				w.count("leases beside a value of a newer format", 1)
				return
			}
		}
	}
}

// checkKept checks, if etcd forgot nothing, that fields of a newer version are still there. A
// registration goes with its process.
func (w *world) checkKept() {
	for key := range w.mu.newer {
		value, ok := w.mem.Value("/march/default/" + key)
		switch {
		case len(w.mu.past.wentBackTo) > 0 || strings.HasPrefix(key, "rooms/") || key == "tags/"+string(fleeting):
		case !ok || !strings.HasSuffix(string(value), newerField):
			w.Errorf("%s has lost the field of a newer version: %s", key, value)
		default:
			w.count("fields of a newer version kept", 1)
		}
	}
}
