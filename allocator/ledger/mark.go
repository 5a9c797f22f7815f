package ledger

import "github.com/march-id/march/allocator"

// Stamp says which layout a lease was made under, in a way that no one can
// retype: the epoch and the mod revision of the layout's key. The zero value
// is no stamp.
type Stamp struct {
	Epoch    string
	Revision int64
}

// Era is what a room leased of a tag under one layout: IDs of the room's range
// in layout Version, from First up to End, exclusive. End is the last ID
// leased + 1.
type Era struct {
	Stamp   Stamp
	Version int64
	First   int64
	End     int64
}

// Mark is what a room leased of a tag. The zero value is that of a room that
// never leased any.
type Mark struct {
	Next int64 // the next ID not yet leased; an operator may have raised it above Era.End
	Era  Era   // the zero Era when nothing was leased
}

// leased returns the mark after a segment was leased under stamp, and the era
// that ended with it, if one did. The segment lies at or above m.Next.
//
// Where the epoch is new but the layout version is not, the era goes on: a
// version's ranges never change, and versions go on above all that were known
// when an epoch begins.
func (m Mark) leased(stamp Stamp, seg allocator.Segment) (next Mark, ended *Era) {
	era := m.Era
	if era.Version != seg.Version {
		if era.Version != 0 {
			was := era // a copy: era becomes the new one
			ended = &was
		}
		era = Era{Version: seg.Version, First: seg.First}
	}
	era.Stamp = stamp
	era.End = seg.Last() + 1
	return Mark{Next: era.End, Era: era}, ended
}

// raised returns the mark, raised to next where it is below. It keeps its stamp,
// none where nothing was leased: so the next lease still passes by the floor.
func (m Mark) raised(next int64) Mark {
	m.Next = max(m.Next, next)
	return m
}

func (m Mark) encode() []byte {
	v := &markValue{Next: m.Next}
	if m.Era.Version != 0 {
		era := m.Era.value()
		v.Era = &era
	}
	return encode(v)
}

func (e Era) value() eraValue {
	return eraValue{Epoch: e.Stamp.Epoch, Revision: e.Stamp.Revision, Version: e.Version, First: e.First, End: e.End}
}

func (e Era) encode() []byte { return encode(&endedEraValue{eraValue: e.value()}) }

func (v eraValue) era() Era {
	return Era{Stamp: Stamp{v.Epoch, v.Revision}, Version: v.Version, First: v.First, End: v.End}
}

func decodeMark(kv KV) (Mark, error) {
	var v markValue
	if err := decode(kv, &v); err != nil {
		return Mark{}, err
	}
	m := Mark{Next: v.Next}
	if v.Era != nil {
		m.Era = v.Era.era()
	}
	if m.Next < 0 || m.Era.End > m.Next || v.Era != nil && !m.Era.fits() {
		return Mark{}, allocator.Errorf(allocator.Internal, "key %s: a mark's numbers do not fit: %s", kv.Key, kv.Value)
	}
	return m, nil
}

func decodeEra(kv KV) (Era, error) {
	var v endedEraValue
	if err := decode(kv, &v); err != nil {
		return Era{}, err
	}
	if e := v.era(); e.fits() {
		return e, nil
	}
	return Era{}, allocator.Errorf(allocator.Internal, "key %s: an era's numbers do not fit: %s", kv.Key, kv.Value)
}

// fits reports whether e can be an era.
func (e Era) fits() bool {
	return e.Stamp.Epoch != "" && e.Stamp.Revision >= 1 && e.Version >= 1 && 0 <= e.First && e.First < e.End
}
