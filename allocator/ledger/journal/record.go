package journal

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"slices"

	"github.com/march-id/march/allocator"
)

// Format is the number that a journal's first record has.
const Format = 1

// Record is what one line of a journal holds: some of what an instance
// remembers. What is empty says nothing.
type Record struct {
	// In the first record, and in no other.
	Format int    `json:"format,omitempty"`
	UUID   string `json:"uuid,omitempty"`
	Room   string `json:"room,omitempty"`
	Name   string `json:"name,omitempty"`

	Incarnations []string `json:"incarnations,omitempty"` // processes that wrote it
	Epochs       []string `json:"epochs,omitempty"`       // that came into force
	Epoch        string   `json:"epoch,omitempty"`        // that Revision is of
	Revision     int64    `json:"revision,string,omitempty"`
	Version      int64    `json:"version,string,omitempty"` // of the layout
	Rooms        []string `json:"rooms,omitempty"`          // that ever had a range
	Seen         []Seen   `json:"seen,omitempty"`
	SeenUnder    string   `json:"seen_under,omitempty"` // the epoch that Seen is of; with another one, what was seen before goes
	Barred       string   `json:"barred,omitempty"`     // the epoch under which nothing is leased any longer
	Blank        bool     `json:"blank,omitempty"`      // a process began without what those before it remembered
	Vouched      bool     `json:"vouched,omitempty"`    // it is no matter any longer; not in a state
	Marks        []Mark   `json:"marks,omitempty"`
}

// Seen is a process that was registered.
type Seen struct {
	Room        string `json:"room"`
	Name        string `json:"name"`
	Incarnation string `json:"incarnation"`
	Address     string `json:"address"`
}

// Mark is the next ID of a tag that is not yet leased, at least.
type Mark struct {
	Tag  string `json:"tag"`
	Next int64  `json:"next,string"`
}

// State is all records of a journal together.
type State struct {
	Record // Marks is empty; Epoch is the last one, Revision the highest under it
	Marks  map[string]int64
}

// most bounds each list of a state; the oldest go.
const most = 1000

// add adds a record.
func (s *State) add(r Record) {
	if r.Format != 0 {
		s.Format, s.UUID, s.Room, s.Name = r.Format, r.UUID, r.Room, r.Name
	}
	s.Incarnations = union(s.Incarnations, r.Incarnations)
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
	s.Seen = union(s.Seen, r.Seen)
	if r.Barred != "" {
		s.Barred = r.Barred
	}
	s.Blank = (s.Blank || r.Blank) && !r.Vouched
	for _, m := range r.Marks {
		if s.Marks == nil {
			s.Marks = make(map[string]int64)
		}
		s.Marks[m.Tag] = max(s.Marks[m.Tag], m.Next)
	}
}

// union returns a with those of b that it does not have; at most the last most
// of them.
func union[T comparable](a, b []T) []T {
	for _, x := range b {
		if !slices.Contains(a, x) {
			a = append(slices.Clip(a), x)
		}
	}
	if more := len(a) - most; more > 0 {
		a = slices.Clone(a[more:])
	}
	return a
}

// records returns the state as records, the first one with the format.
func (s *State) records() []Record {
	const marks = 1000 // in one
	first := s.Record
	first.Marks = nil
	all := []Record{first}
	var part []Mark
	for tag, next := range s.Marks {
		if part = append(part, Mark{tag, next}); len(part) == marks {
			all, part = append(all, Record{Marks: part}), nil
		}
	}
	if len(part) > 0 {
		all = append(all, Record{Marks: part})
	}
	return all
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// encode returns a record as a line: its checksum, a space, JSON.
func encode(r Record) []byte {
	b, err := json.Marshal(r)
	if err != nil {
		panic("journal: a record cannot be encoded: " + err.Error()) // plain structs: a defect in this file
	}
	return fmt.Appendf(nil, "%08x %s\n", crc32.Checksum(b, castagnoli), b)
}

var errChecksum = errors.New("bad checksum")

// decode reads a line without its end. Its error is errChecksum, or that of a
// record that another program wrote, or another version of this one.
func decode(line []byte) (Record, error) {
	var r Record
	sum, text, ok := bytes.Cut(line, []byte(" "))
	if !ok || string(sum) != fmt.Sprintf("%08x", crc32.Checksum(text, castagnoli)) {
		return r, errChecksum
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&r); err != nil {
		return Record{}, allocator.Errorf(allocator.Internal, "not a record of this program: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return Record{}, allocator.Errorf(allocator.Internal, "not a record of this program: something follows it")
	}
	return r, nil
}

// endsWell reports whether a line that cannot be read ends in one that can: the
// end of the one before was damaged, which no crash does.
func endsWell(line []byte) bool {
	for from := 1; from < len(line); from++ {
		at := bytes.Index(line[from:], []byte(" {"))
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

// Parse reads a journal. A last line that is cut off, or whose checksum is
// wrong, is what a crash left of a write that nobody was told of: it is left
// out. Anything else that cannot be read is an error: what it held is lost, and
// what was leased with it. The error names the line.
func Parse(content []byte) (State, error) {
	var s State
	for number := 1; len(content) > 0; number++ {
		line, rest, whole := bytes.Cut(content, []byte("\n"))
		content = rest
		r, err := decode(line)
		switch {
		case errors.Is(err, errChecksum) && number > 1 && len(rest) == 0 && !endsWell(line):
			return s, nil // torn
		case err == nil && !whole:
			err = allocator.Errorf(allocator.Internal, "the line has no end")
			if number > 1 {
				return s, nil
			}
		case err == nil && (r.Format != 0) != (number == 1):
			err = allocator.Errorf(allocator.Internal, "only the first record has a format")
		case err == nil && number == 1 && r.Format != Format:
			err = allocator.Errorf(allocator.Internal, "format %d; this program knows format %d", r.Format, Format)
		}
		if err != nil {
			return State{}, allocator.Errorf(allocator.Refused, "line %d: %w", number, err)
		}
		s.add(r)
	}
	if s.Format == 0 {
		return State{}, allocator.Errorf(allocator.Refused, "it is empty")
	}
	return s, nil
}
