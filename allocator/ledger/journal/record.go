package journal

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"maps"
	"slices"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
)

// Format is the number that a journal's first record has. Format 1 was the first
// release's.
const Format = 2

// Record is a part of an instance's memory. An empty field says nothing.
type Record struct {
	// In the first record, and in no other.
	Format int                `json:"format,omitempty"`
	UUID   string             `json:"uuid,omitempty"`
	Room   allocator.Room     `json:"room,omitempty"`
	Name   allocator.Instance `json:"name,omitempty"`

	Incarnations []string              `json:"incarnations,omitempty"` // processes that wrote the journal
	Epochs       []string              `json:"epochs,omitempty"`       // that came into force
	Epoch        string                `json:"epoch,omitempty"`        // the epoch of Revision
	Revision     int64                 `json:"revision,string,omitempty"`
	Version      int64                 `json:"version,string,omitempty"` // of the layout
	Rooms        []allocator.Room      `json:"rooms,omitempty"`          // all rooms that ever had a range
	Seen         []record.SeenInstance `json:"seen,omitempty"`
	// the epoch of Seen; under another epoch the list is dropped
	SeenUnder   string   `json:"seen_under,omitempty"`
	MarginTotal int64    `json:"margin_total,string,omitempty"`
	Unconfirmed bool     `json:"unconfirmed,omitempty"` // a process began without the memory of its predecessors
	Confirmed   bool     `json:"confirmed,omitempty"`   // ends Unconfirmed; not in a state
	Marks       []Mark   `json:"marks,omitempty"`
	Windows     []Window `json:"windows,omitempty"`
	NotBefore   int64    `json:"not_before,string,omitempty"` // the latest of any epoch
	Formats     int      `json:"formats,omitempty"`           // that are turned on; absent means 1, as older programs know
	Kept        *Kept    `json:"kept,omitempty"`
}

// Mark is the least ID of a tag that may not be leased yet.
type Mark struct {
	Tag     allocator.Tag `json:"tag"`
	Next    int64         `json:"next,string"`
	Version int64         `json:"version,string"` // of the layout of the last lease
}

// Window is the time for which a worker is leased, as last written. A journal without
// time-ordered IDs has none, so that older programs can read it.
type Window struct {
	record.WorkerID
	Incarnation string `json:"incarnation"`
	From        int64  `json:"from,string"` // Unix ms
	Until       int64  `json:"until,string"`
	Epoch       string `json:"epoch"` // of the lease, as are the layout's revision
	Revision    int64  `json:"layout_revision,string"`
	Clock       int64  `json:"clock,string"`
}

// Kept is what a process that stopped in good order did not issue: the next process of its name may. Records with one
// nonce are parts of it, in their order. It is written under formats 2 only.
type Kept struct {
	Nonce    string        `json:"nonce"` // random; empty where nothing is kept any more
	Segments []KeptSegment `json:"segments,omitempty"`
}

// KeptSegment is an allocator.Segment of a tag.
type KeptSegment struct {
	Tag      allocator.Tag `json:"tag"`
	Life     int64         `json:"life,string"` // when the tag was created, in Unix ms
	Version  int64         `json:"version,string"`
	Boundary int64         `json:"boundary,string"`
	Lower    int64         `json:"lower,string"`
	Upper    int64         `json:"upper,string"`
	First    int64         `json:"first,string"`
	Count    int64         `json:"count,string"`
}

// Parts yields k in parts of which each fits into a record.
func (k Kept) Parts(yield func(Record) bool) {
	for part := range slices.Chunk(k.Segments, inRecord) {
		if !yield(Record{Kept: &Kept{Nonce: k.Nonce, Segments: part}}) {
			return
		}
	}
}

// Hash returns the hash of k, in hexadecimal digits.
func (k Kept) Hash() string {
	text, err := json.Marshal(k)
	if err != nil {
		panic("journal: what is kept cannot be encoded: " + err.Error()) // plain structs: a defect in this file
	}
	return fmt.Sprintf("%x", sha256.Sum256(text))
}

// State is all records of a journal together.
type State struct {
	Record // Marks and Windows are empty; Epoch is the last one, Revision the highest under it
	// Leaser is the process that leased last, empty if none did. No field of a Record has it: a
	// process begins with a record of itself, so the last process before the last lease is it.
	Leaser string
	Marks  map[allocator.Tag]Mark
	// Steps are by how much the last two leases of tags raised their marks, the last one first: of a file that was
	// read, as far as it has them since it was last written anew.
	Steps   map[allocator.Tag][2]int64
	Windows map[record.WorkerID]Window
}

// MaxWindows bounds the windows of a state. Those that end last are kept.
const MaxWindows = 10_000

// inRecord is how many marks, windows or kept segments are written in one record at most.
const inRecord = 1000

// most bounds each list of a state; the oldest entries go.
const most = 1000

func (s *State) add(r Record) {
	if r.Format != 0 {
		s.Format, s.UUID, s.Room, s.Name = r.Format, r.UUID, r.Room, r.Name
	}
	s.Incarnations = union(s.Incarnations, r.Incarnations)
	if n := len(s.Incarnations); n > 0 && len(r.Marks)+len(r.Windows) > 0 {
		s.Leaser = s.Incarnations[n-1]
	}
	s.Epochs = union(s.Epochs, r.Epochs)
	if n := len(s.Epochs); n > 0 && s.Epoch != s.Epochs[n-1] {
		s.Epoch, s.Revision = s.Epochs[n-1], 0 // revisions belong to an epoch
	}
	if r.Epoch == s.Epoch && s.Epoch != "" {
		s.Revision = max(s.Revision, r.Revision)
	}
	s.Version = max(s.Version, r.Version)
	s.Rooms = union(s.Rooms, r.Rooms)
	if r.SeenUnder != "" && r.SeenUnder != s.SeenUnder {
		s.SeenUnder, s.Seen = r.SeenUnder, nil
	}
	for _, seen := range r.Seen {
		// A process that left is the one that was seen before.
		s.Seen = slices.DeleteFunc(s.Seen, func(was record.SeenInstance) bool {
			was.Left = seen.Left
			return was == seen
		})
		s.Seen = append(s.Seen, seen)
	}
	s.Seen = record.TrimSeen(s.Seen, most)
	s.MarginTotal = max(s.MarginTotal, r.MarginTotal)
	s.Unconfirmed = (s.Unconfirmed || r.Unconfirmed) && !r.Confirmed
	for _, m := range r.Marks {
		if s.Marks == nil {
			s.Marks = make(map[allocator.Tag]Mark)
		}
		was, known := s.Marks[m.Tag]
		if m.Next < was.Next {
			continue
		}
		if by := m.Next - was.Next; known && by > 0 && s.Steps != nil {
			s.Steps[m.Tag] = [2]int64{by, s.Steps[m.Tag][0]}
		}
		s.Marks[m.Tag] = m
	}
	s.NotBefore = max(s.NotBefore, r.NotBefore)
	s.Formats = max(s.Formats, r.Formats)
	s.keep(r.Kept)
	for _, w := range r.Windows {
		s.window(w)
	}
}

// keep adds a part of what is kept, or ends all that was kept before.
func (s *State) keep(part *Kept) {
	switch {
	case part == nil:
		return
	case part.Nonce == "":
		s.Kept = nil
		return
	case s.Kept == nil || s.Kept.Nonce != part.Nonce:
		s.Kept = &Kept{Nonce: part.Nonce}
	}
	s.Kept.Segments = append(s.Kept.Segments, part.Segments...)
}

// window adds a window, and replaces the worker's previous one: a clean stop ends a window
// earlier.
func (s *State) window(w Window) {
	if s.Windows == nil {
		s.Windows = make(map[record.WorkerID]Window)
	}
	s.Windows[w.WorkerID] = w
	if len(s.Windows) <= MaxWindows {
		return
	}
	first := w.WorkerID
	for id, other := range s.Windows {
		if other.Until < s.Windows[first].Until {
			first = id
		}
	}
	delete(s.Windows, first)
}

// union returns a with the values of b that it does not have, at most the last most of them.
func union[T comparable](a, b []T) []T {
	for _, x := range b {
		if !slices.Contains(a, x) {
			a = append(a, x)
		}
	}
	return a[max(len(a)-most, 0):]
}

// records yields the state as records, the first one with the format. The processes since the
// leaser come after the leases: see State.Leaser.
func (s *State) records(yield func(Record) bool) {
	head := s.Record
	head.Kept = nil
	var since []string
	if s.Leaser != "" {
		leased := slices.Index(s.Incarnations, s.Leaser) + 1
		head.Incarnations, since = s.Incarnations[:max(leased, 1)], s.Incarnations[max(leased, 1):]
	}
	if !yield(head) {
		return
	}
	var part []Mark
	for _, mark := range s.Marks {
		if part = append(part, mark); len(part) == inRecord {
			if !yield(Record{Marks: part}) {
				return
			}
			part = part[:0]
		}
	}
	if len(part) > 0 && !yield(Record{Marks: part}) {
		return
	}
	windows := slices.Collect(maps.Values(s.Windows))
	for chunk := range slices.Chunk(windows, inRecord) {
		if !yield(Record{Windows: chunk}) {
			return
		}
	}
	if s.Kept != nil {
		for part := range s.Kept.Parts {
			if !yield(part) {
				return
			}
		}
	}
	if len(since) > 0 {
		yield(Record{Incarnations: since})
	}
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// encode returns records as a line: its checksum, a space, JSON.
func encode(records ...Record) []byte {
	b, err := json.Marshal(records)
	if err != nil {
		panic("journal: a record cannot be encoded: " + err.Error()) // plain structs: a defect in this file
	}
	return fmt.Appendf(nil, "%08x %s\n", crc32.Checksum(b, castagnoli), b)
}

var (
	errChecksum = errors.New("bad checksum")
	errFormat   = fmt.Errorf("it was written by another release of March; this one reads format %d: move it away, "+
		"and begin with a new cluster where it was the first release's", Format)
)

// decode reads a line without its end. Its error is errChecksum, or says that another program
// or another version of this one wrote the records.
func decode(line []byte) ([]Record, error) {
	sum, text, ok := bytes.Cut(line, []byte(" "))
	if !ok || string(sum) != fmt.Sprintf("%08x", crc32.Checksum(text, castagnoli)) {
		return nil, errChecksum
	}
	var records []Record
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&records); err != nil {
		return nil, fmt.Errorf("not a record of this program: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) || len(records) == 0 {
		return nil, errors.New("not a record of this program")
	}
	return records, nil
}

// foreign reports whether a first line with a correct checksum has another format: the first
// release wrote an object, later releases write an array.
func foreign(line []byte) bool {
	_, text, _ := bytes.Cut(line, []byte(" "))
	var head struct {
		Format int `json:"format"`
	}
	if json.Unmarshal(text, &head) != nil {
		var heads []json.RawMessage
		if json.Unmarshal(text, &heads) != nil || len(heads) == 0 || json.Unmarshal(heads[0], &head) != nil {
			return false
		}
	}
	return head.Format != 0 && head.Format != Format
}

// endsWell reports whether a line that cannot be read ends in one that can. Then the end of the
// previous line was damaged, which no crash does.
func endsWell(line []byte) bool {
	for from := 1; from < len(line); from++ {
		at := bytes.Index(line[from:], []byte(" ["))
		if at < 0 {
			return false
		}
		if from += at; from > 8 {
			if _, err := decode(line[from-8:]); err == nil {
				return true
			}
		}
	}
	return false
}

// Parse reads a journal. It leaves out a last line that is cut off or has a wrong checksum: a
// crash interrupted a write, and no caller was told that it succeeded. Any other line that
// cannot be read is an error, as the leases in it are lost. The error is Refused and names the
// line.
func Parse(content []byte) (State, error) {
	s := State{Steps: make(map[allocator.Tag][2]int64)}
	for number := 1; len(content) > 0; number++ {
		line, rest, whole := bytes.Cut(content, []byte("\n"))
		content = rest
		records, err := decode(line)
		switch {
		case number == 1 && !errors.Is(err, errChecksum) && foreign(line):
			return State{}, allocator.Errorf(allocator.Refused, "%w", errFormat)
		case number > 1 && err == nil && !whole,
			number > 1 && errors.Is(err, errChecksum) && len(rest) == 0 && !endsWell(line):
			return s, nil // torn
		case err == nil && !whole:
			err = errors.New("the line has no end")
		}
		for k, r := range records {
			if err == nil && (r.Format != 0) != (number == 1 && k == 0) {
				err = errors.New("the first record, and no other, has a format")
			}
			s.add(r)
		}
		if err != nil {
			return State{}, allocator.Errorf(allocator.Refused, "line %d: %w", number, err)
		}
	}
	if s.Format == 0 {
		return State{}, allocator.Errorf(allocator.Refused, "it is empty")
	}
	return s, nil
}
