package ledger

import (
	"context"
	"fmt"
)

// epoch checks what says under which terms there are leases: epoch and settings.
func (v *verification) epoch(ctx context.Context) error {
	answer, err := v.l.gets(ctx, get(v.l.keys.epoch()), get(v.l.keys.settings()))
	if err != nil {
		return err
	}
	if v.report.Settings, _, err = v.l.decodeSettings(answer.Got[1]); err != nil {
		v.add("%v", err)
	}
	var e epochValue
	kv, ok := answer.one(0)
	if !ok {
		v.add("there is no key %s", v.l.keys.epoch())
	} else if err := decode(kv, &e); err != nil {
		v.add("%v", err)
	} else if e.Epoch == "" && e.Halted == nil {
		v.add("key %s is empty", kv.Key)
	} else if e.Halted != nil {
		v.checker.recovering = e.Halted.Recover
		v.report.Halt = HaltRecord{By: e.Halted.By, Why: e.Halted.Why, Time: e.Halted.Time}
	}
	return nil
}

// history reads the layouts that were not read before, and the current one
// from the snapshot that shows the end of them.
func (v *verification) history(ctx context.Context) error {
	k := v.l.keys
	from := max(k.layouts(), v.newest)
	var last KV
	for {
		answer, err := v.l.gets(ctx, get(k.layout()), page(from, prefixEnd(k.layouts()), v.page))
		if err != nil {
			return err
		}
		for _, kv := range answer.Got[1] {
			if from = kv.Key + "\x00"; kv.Key > v.newest {
				v.newest = kv.Key
				v.version(kv)
			}
			last = kv
		}
		if int64(len(answer.Got[1])) == v.page {
			continue
		}
		kv, _ := answer.one(0)
		if kv.ModRevision != v.layout.ModRevision || !v.fresh {
			v.layout, v.fresh = kv, true
			v.checker.layoutRevision = kv.ModRevision
			v.current(kv, last)
		}
		return nil
	}
}

// version checks a layout of the history.
func (v *verification) version(kv KV) {
	key, err := v.l.keys.parse(kv.Key)
	if err != nil {
		v.add("%v", err)
		return
	}
	r, err := decodeLayout(kv)
	if err == nil && r.Layout.Version != key.version {
		err = fmt.Errorf("key %s: holds version %d", kv.Key, r.Layout.Version)
	}
	if err != nil {
		v.add("%v", err)
		return
	}
	v.checker.version(r)
}

// current checks the layout in force against the last of the history.
func (v *verification) current(kv, last KV) {
	if kv.ModRevision == 0 {
		v.add("there is no key %s", v.l.keys.layout())
		return
	}
	r, err := decodeLayout(kv)
	if err != nil {
		v.add("%v", err)
		return
	}
	v.checker.rooms(r.Ever)
	v.checker.current(r)
	if own := v.l.keys.layoutAt(r.Layout.Version); last.Key == own && string(last.Value) != string(kv.Value) {
		v.add("the layout in force differs from its own history, %s", own)
	}
}
