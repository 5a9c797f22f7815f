package record

import (
	"slices"
	"unique"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/store"
)

// Stamp identifies a layout by the epoch and the mod revision of the layout's key: typing the
// same layout again makes another stamp. The zero value is no stamp.
type Stamp struct {
	Epoch    string `json:"epoch"`
	Revision int64  `json:"layout_revision,string"`
}

// Era is a room's leases of a tag under one stamp: IDs of the room's range in layout Version,
// from First up to End, exclusive. End is the last leased ID + 1.
type Era struct {
	Version int64  `json:"version,string"`
	Epoch   string `json:"epoch"`
	First   int64  `json:"first,string"`
	End     int64  `json:"end,string"`
}

// Mark is a room's leases of a tag. The zero value is the mark of a room that never leased any.
// Marks are values: a changed mark shares no era with the old one.
type Mark struct {
	Next  int64 `json:"next,string"`            // the next ID not yet leased; an operator may have raised it above the last era
	Stamp Stamp `json:"stamp,omitzero"`         // of the last lease; zero if there was no lease yet
	Total int64 `json:"total,string,omitempty"` // the margin total of the epoch of Stamp
	Began int64 `json:"began,string,omitempty"` // the base of the room's first lease in the epoch of Stamp
	Eras  []Era `json:"eras,omitempty"`         // at most MaxEras, the latest last
}

// Last returns the era of the last lease, the zero Era if nothing was leased.
func (m Mark) Last() Era {
	if len(m.Eras) == 0 {
		return Era{}
	}
	return m.Eras[len(m.Eras)-1]
}

// AbsentMark stands for the mark of a room that has none of a tag: the tag's start, with the
// margin total at the tag's creation.
func AbsentMark(start, baseTotal int64) Mark { return Mark{Next: start, Total: baseTotal} }

// Raised returns the mark with its next raised to at least next. It keeps its stamp, or has
// none if nothing was leased, so that the next lease still has to pass the floor. Every new
// mark is made here, also a lease's.
func (m Mark) Raised(next int64) Mark {
	m.Next = max(m.Next, next)
	return m
}

// Leased returns the mark after a lease of a segment under stamp. total is the margin total of
// the stamp's epoch. The segment was computed up from base, which is at least m.Next. A new
// stamp begins a new era.
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

// Encode returns the stored value of the mark.
func (m Mark) Encode() []byte { return Encode(&m) }

// DecodeMark reads a mark. Its error is a KeyError.
func DecodeMark(kv store.KV) (Mark, error) {
	m, err := decode[Mark](kv)
	m.Stamp.Epoch = oneString(m.Stamp.Epoch)
	for i := range m.Eras {
		m.Eras[i].Epoch = oneString(m.Eras[i].Epoch)
	}
	return m, err
}

// oneString returns one shared copy of an epoch for all marks: an instance may hold a million
// of them.
func oneString(epoch string) string { return unique.Make(epoch).Value() }

// Validate checks that the numbers fit. Its error is Internal.
func (m *Mark) Validate() error {
	if !m.fits() {
		return allocator.Errorf(allocator.Internal, "a mark's numbers do not fit: %s", m.Encode())
	}
	return nil
}

// fits reports whether the numbers of m are possible in a mark.
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

// At returns three things about an ID. The first is the era that contains it, zero for none.
// The second is whether the ID may belong to an older era that is no longer kept. The third is
// whether it lies between the eras of two epochs, below a first era that is not of the first
// epoch, or in a part that the mark was raised by. recovered says that there was a recover.
// Layouts of the first epoch have versions from 1 on, layouts of a later one versions above
// RecoverVersions.
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
