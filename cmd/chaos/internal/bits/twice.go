package bits

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"math/bits"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/march-id/march/allocator"
)

const twiceFile, plantedFile = "twice.jsonl", "planted.jsonl"

func (s *Set) openNotes() error {
	var err error
	if s.notes.twice, s.notes.found, err = openNotes(filepath.Join(s.dir, twiceFile)); err != nil {
		return err
	}
	s.notes.planted, s.notes.plants, err = openNotes(filepath.Join(s.dir, plantedFile))
	return err
}

// openNotes opens a file of runs, a line of JSON each. A last line without an
// end is what a process left that was killed.
func openNotes(path string) (*os.File, []Run, error) {
	content, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, nil, err
	}
	whole := content[:strings.LastIndexByte(string(content), '\n')+1]
	var runs []Run
	for lines := bufio.NewScanner(strings.NewReader(string(whole))); lines.Scan(); {
		var r Run
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			return nil, nil, fmt.Errorf("%s: line %d: %w", path, len(runs)+1, err)
		}
		runs = append(runs, r)
	}
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o640)
	if err != nil {
		return nil, nil, err
	}
	if err := file.Truncate(int64(len(whole))); err != nil {
		return nil, nil, errors.Join(err, file.Close())
	}
	if _, err := file.Seek(int64(len(whole)), 0); err != nil {
		return nil, nil, errors.Join(err, file.Close())
	}
	return file, runs, nil
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

// note notes what came twice.
func (s *Set) note(tag allocator.Tag, twice []allocator.Run) error {
	runs := make([]Run, len(twice))
	for i, r := range twice {
		runs[i] = Run{tag, r.First, r.Count}
	}
	s.notes.Lock()
	defer s.notes.Unlock()
	s.notes.found = append(s.notes.found, runs...)
	return write(s.notes.twice, runs...)
}

// Plant adds an ID that is there once more, as if it had been issued twice: by
// what Add does, so a set that misses it would miss any other. It is noted, so
// that Verdict can tell it from those that were not planted.
func (s *Set) Plant(tag allocator.Tag, id int64) error {
	if !s.Has(tag, id) {
		return fmt.Errorf("bits: tag %s: %d was not issued, so it would not be there twice", tag, id)
	}
	run := Run{tag, id, 1}
	s.notes.Lock()
	s.notes.plants = append(s.notes.plants, run)
	err := write(s.notes.planted, run)
	s.notes.Unlock()
	if err != nil {
		return err
	}
	_, err = s.Add(tag, allocator.Run{First: id, Count: 1})
	return err
}

// Verdict is what a set found.
type Verdict struct {
	IDs     int64 // different ones
	Pages   int64
	Planted int
	Missed  []Run // planted and not found: the set is of no use
	Twice   []Run // found and not planted
}

// TwiceIDs returns how many IDs came twice that were not planted, each as often
// as it came again.
func (v Verdict) TwiceIDs() (n int64) {
	for _, r := range v.Twice {
		n += r.Count
	}
	return n
}

// Verdict returns what was found until now.
func (s *Set) Verdict() Verdict {
	s.notes.Lock()
	found, planted := slices.Clone(s.notes.found), slices.Clone(s.notes.plants)
	s.notes.Unlock()
	v := Verdict{Planted: len(planted), Pages: s.pages.Load(), IDs: s.IDs()}
	for _, p := range planted {
		i := slices.IndexFunc(found, func(r Run) bool { return r.Tag == p.Tag && r.First <= p.First && p.First-r.First < r.Count })
		if i < 0 {
			v.Missed = append(v.Missed, p)
			continue
		}
		r := found[i]
		found = slices.Delete(found, i, i+1)
		for _, rest := range []Run{{r.Tag, r.First, p.First - r.First}, {r.Tag, p.First + 1, r.First + r.Count - p.First - 1}} {
			if rest.Count > 0 {
				found = append(found, rest)
			}
		}
	}
	v.Twice = found
	return v
}

// tags returns the tags that have bits, in order.
func (s *Set) tags() []*tagBits {
	s.mu.RLock()
	defer s.mu.RUnlock()
	all := make([]*tagBits, 0, len(s.mu.tags))
	for _, t := range s.mu.tags {
		all = append(all, t)
	}
	slices.SortFunc(all, func(a, b *tagBits) int { return strings.Compare(string(a.name), string(b.name)) })
	return all
}

// numbers returns the numbers of the pages, in order.
func (t *tagBits) numbers() []int64 {
	t.mu.RLock()
	defer t.mu.RUnlock()
	numbers := make([]int64, 0, len(t.mu.slots))
	for number := range t.mu.slots {
		numbers = append(numbers, number)
	}
	slices.Sort(numbers)
	return numbers
}

// IDs counts the IDs that are there.
func (s *Set) IDs() (n int64) {
	for _, t := range s.tags() {
		for _, number := range t.numbers() {
			for _, word := range t.known(number) {
				n += int64(bits.OnesCount64(word))
			}
		}
	}
	return n
}

// Missing returns how many IDs s has that other does not have, and the first
// few. Nothing may be added meanwhile.
func (s *Set) Missing(other *Set) (n int64, first []Run) {
	const few = 10
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
	return n, first
}
