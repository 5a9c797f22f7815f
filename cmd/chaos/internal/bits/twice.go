package bits

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/bits"
	"os"
	"slices"
	"strings"

	"github.com/march-id/march/allocator"
)

const twiceFile, plantedFile = "twice.jsonl", "planted.jsonl"

// readRuns reads a file of runs, a line of JSON each. A last line without an end was written by
// a process that was killed.
func readRuns(file *os.File) ([]Run, error) {
	content, err := io.ReadAll(io.NewSectionReader(file, 0, 1<<40))
	if err != nil {
		return nil, err
	}
	var runs []Run
	for {
		line, rest, whole := bytes.Cut(content, []byte("\n"))
		if !whole {
			return runs, nil
		}
		content = rest
		var r Run
		if err := json.Unmarshal(line, &r); err != nil {
			return nil, fmt.Errorf("%s: line %d: %w", file.Name(), len(runs)+1, err)
		}
		runs = append(runs, r)
	}
}

// write appends runs to a file of them.
func write(file *os.File, runs ...Run) error {
	var text []byte
	for _, r := range runs {
		line, err := json.Marshal(r)
		if err != nil {
			return err
		}
		text = append(append(text, line...), '\n')
	}
	_, err := file.Write(text)
	return err
}

// note records IDs that came twice.
func (s *Set) note(tag allocator.Tag, twice []allocator.Run) error {
	runs := make([]Run, len(twice))
	for i, r := range twice {
		runs[i] = Run{tag, r.First, r.Count}
	}
	return write(s.twice, runs...)
}

// Plant adds an ID again, as if it had been issued twice. It uses Add, so a set that misses it
// would miss any other. It records the ID, so that Verdict can tell planted IDs from others.
func (s *Set) Plant(tag allocator.Tag, id int64) error {
	there, err := s.Has(tag, id)
	if err == nil && !there {
		err = fmt.Errorf("bits: tag %s: %d was not issued, so it would not be there twice", tag, id)
	}
	if err == nil {
		err = write(s.planted, Run{tag, id, 1})
	}
	if err != nil {
		return err
	}
	_, err = s.Add(tag, allocator.Run{First: id, Count: 1})
	return err
}

// Verdict is the result of a set.
type Verdict struct {
	IDs     int64 // different ones
	Pages   int64
	Planted int
	Missed  []Run // planted and not found: the set cannot be trusted
	Twice   []Run // found and not planted
}

// TwiceIDs returns how many IDs came twice without being planted, each as often as it came
// again.
func (v Verdict) TwiceIDs() (n int64) {
	for _, r := range v.Twice {
		n += r.Count
	}
	return n
}

// Verdict returns the findings until now, of all processes.
func (s *Set) Verdict() (Verdict, error) {
	if err := s.refresh(); err != nil {
		return Verdict{}, err
	}
	planted, err := readRuns(s.planted) // first: planted IDs are found later
	if err != nil {
		return Verdict{}, err
	}
	found, err := readRuns(s.twice)
	if err != nil {
		return Verdict{}, err
	}
	v := Verdict{Planted: len(planted), Pages: s.pages.Load(), IDs: s.count()}
	for _, p := range planted {
		i := slices.IndexFunc(found, func(r Run) bool {
			return r.Tag == p.Tag && r.First <= p.First && p.First-r.First < r.Count
		})
		if i < 0 {
			v.Missed = append(v.Missed, p)
			continue
		}
		r := found[i]
		found = slices.Delete(found, i, i+1)
		for _, rest := range []Run{{r.Tag, r.First, p.First - r.First},
			{r.Tag, p.First + 1, r.First + r.Count - p.First - 1}} {
			if rest.Count > 0 {
				found = append(found, rest)
			}
		}
	}
	v.Twice = found
	return v, nil
}

// tags returns, in order, the tags with bits.
func (s *Set) tags() []*tagBits {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return slices.SortedFunc(maps.Values(s.mu.tags), func(a, b *tagBits) int {
		return strings.Compare(string(a.name), string(b.name))
	})
}

// numbers returns the numbers of the pages, in order.
func (t *tagBits) numbers() []int64 {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return slices.Sorted(maps.Keys(t.mu.slots))
}

// count counts the IDs in the set.
func (s *Set) count() (n int64) {
	for _, t := range s.tags() {
		for _, number := range t.numbers() {
			for _, word := range t.known(number) {
				n += int64(bits.OnesCount64(word))
			}
		}
	}
	return n
}

// Missing returns how many IDs s has that other does not have, and the first few of them. No ID
// may be added meanwhile.
func (s *Set) Missing(other *Set) (n int64, first []Run, err error) {
	const few = 10
	if err := errors.Join(s.refresh(), other.refresh()); err != nil {
		return 0, nil, err
	}
	for _, t := range s.tags() {
		theirs := other.mu.tags[t.name]
		for _, number := range t.numbers() {
			var page []uint64
			if theirs != nil {
				page = theirs.known(number)
			}
			for i, word := range t.known(number) {
				if page != nil {
					word &^= page[i]
				}
				if word == 0 {
					continue
				}
				n += int64(bits.OnesCount64(word))
				for _, r := range appendBits(nil, word, number*PageIDs+int64(i)*64) {
					if len(first) < few {
						first = append(first, Run{t.name, r.First, r.Count})
					}
				}
			}
		}
	}
	return n, first, nil
}
