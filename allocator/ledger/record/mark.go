package record

import (
	"slices"
	"unique"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/store"
)

// Stamp identifies a layout in a way that cannot be retyped: by the epoch and the
// mod revision of the layout's key. The zero value is no stamp.
type Stamp struct {
	Epoch    string `json:"epoch"`
	Revision int64  `json:"layout_revision,string"`
}

// Era is what a room leased of a tag under one stamp: IDs of the room's range in
// layout Version, from First up to End, exclusive. End is the last ID leased + 1.
type Era struct {
	Version int64
	Epoch   string
	First   int64
	End     int64
}

// Mark is what a room leased of a tag. The zero value is the mark of a room that
// never leased any. Marks are values: a changed mark shares no era with the old one.
type Mark struct {
	Next  int64 // the next ID not yet leased; an operator may have raised it above the last era
	Stamp Stamp // of the last lease; zero: no lease yet
	Total int64 // the margin total of the epoch of Stamp
	Began int64 // the base at which the room began in the epoch of Stamp
	Eras  []Era // at most MaxEras, the latest last
}

// Last returns the era of the last lease, the zero Era where nothing was leased.
func (m Mark) Last() Era {
	if len(m.Eras) == 0 {
		return Era{}
	}
	return m.Eras[len(m.Eras)-1]
}

// AbsentMark is what a room counts with that has no mark of a tag: the tag's start,
// with the margin total that the tag was made with.
func AbsentMark(start, baseTotal int64) Mark { return Mark{Next: start, Total: baseTotal} }

// Raised returns the mark, raised to next where it is below. It keeps its stamp,
// none where nothing was leased: so the next lease still passes by the floor.
// Every new mark is made here, that of a lease too.
func (m Mark) Raised(next int64) Mark {
	m.Next = max(m.Next, next)
	return m
}

// Leased returns the mark after a segment was leased under stamp. total is the margin
// total of the stamp's epoch. The segment was computed up from base, which is not
// below m.Next. A new era begins where the stamp is new.
func (m Mark) Leased(stamp Stamp, total, base int64, seg allocator.Segment) Mark {
	if m.Stamp.Epoch != stamp.Epoch {
		m.Total, m.Began = total, base
	}
	era := Era{Version: seg.Version, Epoch: stamp.Epoch, First: seg.First, End: seg.Last() + 1}
	kept := m.Eras
	if m.Stamp == stamp {
		era.First = m.Last().First
		kept = kept[:len(kept)-1]
	}
	m.Stamp = stamp
	m.Eras = append(slices.Clone(kept[max(len(kept)+1-MaxEras, 0):]), era)
	return m.Raised(era.End)
}

// Encode returns the value under which the mark is stored.
func (m Mark) Encode() []byte {
	v := &markValue{Next: m.Next, Total: m.Total, Began: m.Began}
	if m.Stamp != (Stamp{}) {
		stamp := stampValue(m.Stamp)
		v.Stamp = &stamp
	}
	for _, e := range m.Eras {
		v.Eras = append(v.Eras, eraValue(e))
	}
	return Encode(v)
}

// DecodeMark reads a mark and checks that its numbers fit. Its error is a KeyError.
func DecodeMark(kv store.KV) (Mark, error) {
	var v markValue
	if err := Decode(kv, &v); err != nil {
		return Mark{}, err
	}
	m := Mark{Next: v.Next, Total: v.Total, Began: v.Began}
	if v.Stamp != nil {
		m.Stamp = Stamp{Epoch: oneString(v.Stamp.Epoch), Revision: v.Stamp.Revision}
	}
	for _, e := range v.Eras {
		e.Epoch = oneString(e.Epoch)
		m.Eras = append(m.Eras, Era(e))
	}
	if !m.fits() {
		return Mark{}, Damaged(kv.Key, "a mark's numbers do not fit: %s", kv.Value)
	}
	return m, nil
}

// oneString returns one copy of an epoch for all marks: an instance may keep a
// million of them.
func oneString(epoch string) string { return unique.Make(epoch).Value() }

// fits reports whether m can be a mark.
func (m Mark) fits() bool {
	if len(m.Eras) == 0 { // nothing was leased
		return m.Next >= 0 && m.Stamp == Stamp{} && m.Total == 0 && m.Began == 0
	}
	if m.Stamp.Epoch == "" || m.Stamp.Revision < 1 || m.Total < 0 || m.Began < 0 || len(m.Eras) > MaxEras ||
		m.Last().Epoch != m.Stamp.Epoch || m.Last().End > m.Next {
		return false
	}
	for i, e := range m.Eras {
		switch {
		case e.Epoch == "" || e.Version < 1 || e.First < 0 || e.First >= e.End:
			return false
		case i > 0 && (e.First < m.Eras[i-1].End || e.Version < m.Eras[i-1].Version):
			return false
		case e.Epoch == m.Stamp.Epoch && e.First < m.Began:
			return false
		}
	}
	return true
}

// At returns the era that an ID lies in, zero for none; whether the ID may be of an
// era that is older than those kept; and whether it lies between the eras of two
// epochs, below a first era that is not of the first epoch, or in what a mark was raised
// by. recovered says that there was a recover; layouts of the first epoch have versions from 1 on, those of a later one versions
// above recoverVersions.
func (m Mark) At(id int64, recovered bool) (in Era, older, lost bool) {
	for i, e := range m.Eras {
		switch {
		case id >= e.End:
		case id >= e.First:
			return e, false, false
		case i == 0:
			older = len(m.Eras) == MaxEras
			return Era{}, older, recovered && !older && e.Version > RecoverVersions
		default:
			return Era{}, false, m.Eras[i-1].Epoch != e.Epoch
		}
	}
	return Era{}, false, m.Last().End <= id && id < m.Next
}
