// Package bits remembers every ID of a run by one bit, so that a second issue of any ID is
// noticed: 10^9 IDs in 125 MB.
//
// A tag has two files. NAME.bits has pages of PageIDs bits, in the order in which they were
// first needed, and NAME.index has the place of each page. So IDs may lie far apart; only the
// number of pages is bounded.
//
// The bits are memory-mapped, by any number of processes at once. A bit that was set is in the
// page cache of the operating system and outlives its process, however that ends; a crash of
// the machine may lose it. The files are for machines of one byte order.
//
// # Invariants
//
//  1. A bit is tested and set in one atomic step: of two processes that add one ID,
//     exactly one is told that it was there.
//  2. A page is made under a lock on the index, of zeros on the disk before the
//     index has it, and the index has it before a bit of it is set. So a process
//     that is killed leaves no bit behind that another one does not find, and a
//     full disk is an error.
//  3. An ID that came twice has a line in the file twice.jsonl before Add returns.
//
// A check that finds nothing may be one that cannot find anything: see Plant.
package bits

import (
	"errors"
	"fmt"
	"math/bits"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/march-id/march/allocator"
)

// PageIDs is how many IDs a page has.
const PageIDs = 1 << 18

// Limits bound a Set's use of disk and memory.
type Limits struct {
	// Pages bounds the pages of all tags together; each is 32 KiB. Default 65536: 2 GiB, enough
	// for 17 thousand million IDs that lie close together.
	Pages int
}

// DefaultLimits returns the defaults.
func DefaultLimits() Limits { return Limits{Pages: 1 << 16} }

// Set has the bits of all tags of a run. Its methods are safe for concurrent use, except Close.
type Set struct {
	dir            string
	limits         Limits
	pages          atomic.Int64 // of all tags, as far as this process has used them
	twice, planted *os.File     // each line is appended by one write

	mu struct {
		sync.RWMutex
		tags map[allocator.Tag]*tagBits
	}
}

// Run is consecutive IDs of a tag.
type Run struct {
	Tag   allocator.Tag `json:"tag"`
	First int64         `json:"first,string"`
	Count int64         `json:"count,string"`
}

func (r Run) String() string {
	if r.Count == 1 {
		return fmt.Sprintf("%s %d", r.Tag, r.First)
	}
	return fmt.Sprintf("%s %d to %d", r.Tag, r.First, r.First+r.Count-1)
}

// Open opens the set in dir, or makes one.
func Open(dir string, limits Limits) (*Set, error) {
	if limits.Pages < 1 {
		return nil, fmt.Errorf("bits: %d pages; allowed: 1 or more", limits.Pages)
	}
	s := &Set{dir: dir, limits: limits}
	s.mu.tags = make(map[allocator.Tag]*tagBits)
	if err := s.open(); err != nil {
		return nil, errors.Join(fmt.Errorf("bits in %s: %w", dir, err), s.Close())
	}
	return s, nil
}

func (s *Set) open() error {
	if err := os.MkdirAll(s.dir, 0o750); err != nil {
		return err
	}
	for name, file := range map[string]**os.File{twiceFile: &s.twice, plantedFile: &s.planted} {
		var err error
		if *file, err = os.OpenFile(filepath.Join(s.dir, name), os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o640); err != nil {
			return err
		}
	}
	if err := s.refresh(); err != nil {
		return err
	}
	if n := s.pages.Load(); n > int64(s.limits.Pages) {
		return s.full(n)
	}
	return nil
}

// refresh reads the index for pages that other processes made.
func (s *Set) refresh() error {
	files, err := filepath.Glob(filepath.Join(s.dir, "*"+indexSuffix))
	if err != nil {
		return err
	}
	for _, file := range files {
		t, err := s.tag(allocator.Tag(strings.TrimSuffix(filepath.Base(file), indexSuffix)))
		if err == nil {
			err = t.refresh()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *Set) full(pages int64) error {
	return fmt.Errorf("bits: %d pages of %d IDs are needed; allowed: %d (the IDs lie too far apart, or are too many)",
		pages, PageIDs, s.limits.Pages)
}

// Close closes the files. No ID may be added after it.
func (s *Set) Close() error {
	var errs []error
	for _, t := range s.mu.tags {
		errs = append(errs, t.close())
	}
	for _, file := range []*os.File{s.twice, s.planted} {
		if file != nil {
			errs = append(errs, file.Close())
		}
	}
	return errors.Join(errs...)
}

// tag returns a tag's bits, and makes them if necessary.
func (s *Set) tag(name allocator.Tag) (*tagBits, error) {
	s.mu.RLock()
	t := s.mu.tags[name]
	s.mu.RUnlock()
	if t != nil {
		return t, nil
	}
	if _, err := allocator.ParseTag(string(name)); err != nil { // it becomes part of a file's name
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.mu.tags[name]; t != nil {
		return t, nil
	}
	t, err := openTag(s, name)
	if err == nil {
		s.mu.tags[name] = t
	}
	return t, err
}

// Add adds IDs. It returns, in order, and records the IDs that were there already.
func (s *Set) Add(tag allocator.Tag, run allocator.Run) ([]allocator.Run, error) {
	if run.First < 0 || run.Count < 1 || run.First > allocator.MaxID-run.Count+1 {
		return nil, fmt.Errorf("bits: tag %s: %d IDs from %d on; allowed: 1 or more, from 0 to %d", tag, run.Count,
			run.First, int64(allocator.MaxID))
	}
	t, err := s.tag(tag)
	if err != nil {
		return nil, err
	}
	var twice []allocator.Run
	for first, left := run.First, run.Count; left > 0; {
		page, err := t.page(first / PageIDs)
		if err != nil {
			return twice, err
		}
		from := first % PageIDs
		n := min(left, PageIDs-from)
		twice = setBits(page, from, n, first-from, twice)
		first, left = first+n, left-n
	}
	if len(twice) > 0 {
		err = s.note(tag, twice)
	}
	return twice, err
}

// setBits sets n bits from from on, and appends those that were already set to twice, as IDs:
// base is the page's first.
func setBits(page []uint64, from, n, base int64, twice []allocator.Run) []allocator.Run {
	for end := from + n; from < end; {
		word, bit := from/64, from%64
		count := min(64-bit, end-from)
		mask := ^uint64(0) >> (64 - count) << bit
		if again := atomic.OrUint64(&page[word], mask) & mask; again != 0 {
			twice = appendBits(twice, again, base+word*64)
		}
		from += count
	}
	return twice
}

// appendBits appends the bits of a word as runs; base is the ID of the first bit.
func appendBits(runs []allocator.Run, word uint64, base int64) []allocator.Run {
	for word != 0 {
		skip := int64(bits.TrailingZeros64(word))
		count := int64(bits.TrailingZeros64(^(word >> skip)))
		if last := len(runs) - 1; last >= 0 && runs[last].First+runs[last].Count == base+skip {
			runs[last].Count += count
		} else {
			runs = append(runs, allocator.Run{First: base + skip, Count: count})
		}
		if skip+count == 64 {
			break
		}
		word &= ^uint64(0) << (skip + count)
	}
	return runs
}

// Has reports whether the set has an ID.
func (s *Set) Has(tag allocator.Tag, id int64) (bool, error) {
	t, err := s.tag(tag)
	if err != nil || id < 0 {
		return false, err
	}
	page := t.known(id / PageIDs)
	if page == nil {
		if err := t.refresh(); err != nil {
			return false, err
		}
		if page = t.known(id / PageIDs); page == nil {
			return false, nil
		}
	}
	bit := id % PageIDs
	return atomic.LoadUint64(&page[bit/64])&(1<<(bit%64)) != 0, nil
}
