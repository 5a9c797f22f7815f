package bits

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"unsafe"

	"github.com/march-id/march/allocator"
)

const (
	bitsSuffix  = ".bits"
	indexSuffix = ".index"

	pageBytes = PageIDs / 8
	// chunkPages is how many pages are mapped at once, and by how many the file grows.
	chunkPages = 256
	chunkBytes = chunkPages * pageBytes
	// An entry of the index is a page's number and its checksum.
	entryBytes = 12
)

var (
	castagnoli = crc32.MakeTable(crc32.Castagnoli)
	zeros      [pageBytes]byte
)

// tagBits has the bits of one tag.
type tagBits struct {
	set         *Set
	name        allocator.Tag
	bits, index *os.File

	mu struct {
		sync.RWMutex
		slots  map[int64]int // the slot of each page, by its number
		chunks [][]byte      // the mapped file
	}
}

func openTag(s *Set, name allocator.Tag) (*tagBits, error) {
	t := &tagBits{set: s, name: name}
	t.mu.slots = make(map[int64]int)
	path := filepath.Join(s.dir, string(name))
	var err error
	if t.bits, err = os.OpenFile(path+bitsSuffix, os.O_RDWR|os.O_CREATE, 0o640); err != nil {
		return nil, err
	}
	if t.index, err = os.OpenFile(path+indexSuffix, os.O_RDWR|os.O_CREATE, 0o640); err != nil {
		return nil, errors.Join(err, t.bits.Close())
	}
	if err := t.refresh(); err != nil {
		return nil, errors.Join(err, t.close())
	}
	return t, nil
}

// refresh reads the index for pages that other processes made.
func (t *tagBits) refresh() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.locked(t.load)
}

// locked calls use under the lock on the index. The caller holds mu.
func (t *tagBits) locked(use func() error) error {
	err := syscall.Flock(int(t.index.Fd()), syscall.LOCK_EX)
	if err == nil {
		err = errors.Join(use(), syscall.Flock(int(t.index.Fd()), syscall.LOCK_UN))
	}
	if err != nil {
		return fmt.Errorf("bits: tag %s: %w", t.name, err)
	}
	return nil
}

// load reads the new entries of the index. An entry that is cut off was written by a process
// that was killed: it is overwritten.
func (t *tagBits) load() error {
	known := len(t.mu.slots)
	entries, err := io.ReadAll(io.NewSectionReader(t.index, int64(known)*entryBytes, 1<<40))
	if err != nil {
		return err
	}
	for i := range len(entries) / entryBytes {
		entry, slot := entries[i*entryBytes:][:entryBytes], known+i
		number := int64(binary.LittleEndian.Uint64(entry))
		if crc32.Checksum(entry[:8], castagnoli) != binary.LittleEndian.Uint32(entry[8:]) {
			return fmt.Errorf("index: entry %d: bad checksum", slot)
		}
		if _, twice := t.mu.slots[number]; twice || number < 0 || number > allocator.MaxID/PageIDs {
			return fmt.Errorf("index: entry %d: page %d, which is there already or cannot be", slot, number)
		}
		t.mu.slots[number] = slot
	}
	t.set.pages.Add(int64(len(t.mu.slots) - known))
	info, err := t.bits.Stat()
	if err != nil {
		return err
	}
	if want := int64(len(t.mu.slots)) * pageBytes; info.Size() < want {
		return fmt.Errorf("the file of bits has %d bytes; the index says %d", info.Size(), want)
	}
	for len(t.mu.chunks)*chunkPages < len(t.mu.slots) {
		if err := t.grow(); err != nil {
			return err
		}
	}
	return nil
}

// grow maps the next chunk of the file. The caller holds both locks.
func (t *tagBits) grow() error {
	at := int64(len(t.mu.chunks)) * chunkBytes
	info, err := t.bits.Stat()
	if err == nil && info.Size() < at+chunkBytes {
		err = t.bits.Truncate(at + chunkBytes)
	}
	if err != nil {
		return err
	}
	chunk, err := syscall.Mmap(int(t.bits.Fd()), at, chunkBytes,
		syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("mmap: %w", err)
	}
	t.mu.chunks = append(t.mu.chunks, chunk)
	return nil
}

// at returns the page in a slot. The caller holds mu.
func (t *tagBits) at(slot int) []uint64 {
	chunk := t.mu.chunks[slot/chunkPages]
	first := &chunk[slot%chunkPages*pageBytes] // a mapping begins at a page of memory, so it is aligned
	return unsafe.Slice((*uint64)(unsafe.Pointer(first)), pageBytes/8)
}

// known returns a page, nil if there is none.
func (t *tagBits) known(number int64) []uint64 {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if slot, ok := t.mu.slots[number]; ok {
		return t.at(slot)
	}
	return nil
}

// page returns a page, and makes it if necessary.
func (t *tagBits) page(number int64) ([]uint64, error) {
	if page := t.known(number); page != nil {
		return page, nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.locked(func() error { return t.make(number) }); err != nil {
		return nil, err
	}
	return t.at(t.mu.slots[number]), nil
}

// make makes a page, unless another process made it: zeros on the disk, then the entry. If the
// process ends in between, the next page gets the slot.
func (t *tagBits) make(number int64) error {
	if err := t.load(); err != nil {
		return err
	}
	if _, ok := t.mu.slots[number]; ok {
		return nil
	}
	if n := t.set.pages.Load() + 1; n > int64(t.set.limits.Pages) {
		return t.set.full(n)
	}
	slot := len(t.mu.slots)
	if slot/chunkPages == len(t.mu.chunks) {
		if err := t.grow(); err != nil {
			return err
		}
	}
	if _, err := t.bits.WriteAt(zeros[:], int64(slot)*pageBytes); err != nil {
		return err
	}
	var entry [entryBytes]byte
	binary.LittleEndian.PutUint64(entry[:], uint64(number))
	binary.LittleEndian.PutUint32(entry[8:], crc32.Checksum(entry[:8], castagnoli))
	if _, err := t.index.WriteAt(entry[:], int64(slot)*entryBytes); err != nil {
		return err
	}
	t.mu.slots[number] = slot
	t.set.pages.Add(1)
	return nil
}

func (t *tagBits) close() error {
	var errs []error
	for _, chunk := range t.mu.chunks {
		errs = append(errs, syscall.Munmap(chunk))
	}
	return errors.Join(append(errs, t.bits.Close(), t.index.Close())...)
}
