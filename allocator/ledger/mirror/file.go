package mirror

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"go.etcd.io/etcd/client/pkg/v3/fileutil"

	"github.com/march-id/march/allocator"
)

// A file begins with a head of fixed size, which has the length up to which the file was synced:
// a file that is shorter was cut. What is longer was being written as the machine stopped, and
// is left out. Then follow lines: a checksum, a space, and a number and a part as JSON. Numbers
// are consecutive, so a line that is missing is noticed. Marks only grow from line to line.
const (
	fileFormat = 1
	headLength = 64
	// fileSlack is by how much a file may exceed twice the size of its contents.
	fileSlack = 16 << 20
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// numbered is a part with its number in a file.
type numbered struct {
	Number int64 `json:"number"`
	Part
}

// head returns the head of a file that was synced up to a length.
func head(length int64) []byte {
	text := fmt.Sprintf("march-mirror %d %020d", fileFormat, length)
	return fmt.Appendf(nil, "%-*s%08x\n", headLength-9, text, crc32.Checksum([]byte(text), castagnoli))
}

// File keeps a mirror on disk. Only one goroutine may use it.
type File struct {
	path   string
	lock   *fileutil.LockedFile
	file   *os.File // nil if the last write failed: then the file is written anew
	size   int64
	held   int64 // its size when it was last written anew
	number int64 // of the next line
	synced uint32
}

// OpenFile locks a file and adds its content to an empty mirror. Its errors are Refused: another
// process has the file, or it cannot be used; then nothing was changed.
func OpenFile(path string, m *Mirror) (*File, error) {
	lock, err := fileutil.TryLockFile(path+".lock", os.O_RDWR|os.O_CREATE, 0o600)
	if errors.Is(err, fileutil.ErrLocked) {
		return nil, allocator.Errorf(allocator.Refused, "mirror %s: another process has it", path)
	}
	if err != nil {
		return nil, allocator.Errorf(allocator.Refused, "mirror %s: %w", path, err)
	}
	if err := read(path, m); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, errors.Join(allocator.Errorf(allocator.Refused, "mirror %s: %w", path, err), lock.Close())
	}
	return &File{path: path, lock: lock}, nil
}

// ReadFile returns the mirror of a file, which a process may be writing. Its error is Refused.
func ReadFile(path string) (*Mirror, error) {
	m := New(MostTags)
	if err := read(path, m); err != nil {
		return nil, allocator.Errorf(allocator.Refused, "mirror %s: %w", path, err)
	}
	return m, nil
}

// Close unlocks the file.
func (f *File) Close() error {
	var err error
	if f.file != nil {
		err = f.file.Close()
	}
	return errors.Join(err, f.lock.Close())
}

// Sync writes what changed in a mirror since the last Sync. See Mirror.Since for with.
func (f *File) Sync(m *Mirror, with func(func())) error {
	var tick uint32
	with(func() { tick = m.Turn() })
	var err error
	if f.file == nil || f.size > 2*f.held+fileSlack {
		err = f.rewrite(m, with)
	} else {
		err = f.append(m, f.synced, with)
	}
	if err != nil {
		if f.file != nil {
			_ = f.file.Close() // the file is written anew
		}
		f.file = nil
		return fmt.Errorf("mirror %s: %w", f.path, err)
	}
	f.synced = tick
	return nil
}

// append writes the parts since a tick, syncs them, and only then notes their length in the head.
func (f *File) append(m *Mirror, after uint32, with func(func())) error {
	w := bufio.NewWriterSize(f.file, 1<<20)
	for p := range m.Since(after, with) {
		f.number++
		b, err := json.Marshal(numbered{f.number, p})
		if err != nil {
			return err
		}
		n, err := fmt.Fprintf(w, "%08x %s\n", crc32.Checksum(b, castagnoli), b)
		f.size += int64(n)
		if err != nil {
			return err
		}
	}
	if err := errors.Join(w.Flush(), f.file.Sync()); err != nil {
		return err
	}
	_, err := f.file.WriteAt(head(f.size), 0)
	return err
}

func (f *File) rewrite(m *Mirror, with func(func())) (err error) {
	if f.file != nil {
		_ = f.file.Close()
	}
	temporary := f.path + ".new"
	if f.file, err = os.OpenFile(temporary, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600); err != nil {
		f.file = nil
		return err
	}
	if _, err := f.file.Write(head(headLength)); err != nil {
		return err
	}
	f.size, f.number = headLength, 0
	if err := f.append(m, 0, with); err != nil {
		return err
	}
	if err := f.file.Sync(); err != nil { // the head, too
		return err
	}
	if err := os.Rename(temporary, f.path); err != nil {
		return err
	}
	f.held = f.size
	dir, err := os.Open(filepath.Dir(f.path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// read adds a file's content to an empty mirror.
func read(path string, m *Mirror) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	top := make([]byte, headLength)
	if _, err := io.ReadFull(file, top); err != nil {
		return errors.New("it is cut: it has no head")
	}
	var format int
	var length int64
	if _, err := fmt.Sscanf(string(top), "march-mirror %d %d", &format, &length); err != nil {
		return errors.New("it is no mirror's file")
	}
	switch {
	case format != fileFormat:
		return fmt.Errorf("format %d; this program reads format %d", format, fileFormat)
	case !bytes.Equal(top, head(length)):
		return errors.New("its head is damaged")
	case info.Size() < length:
		return fmt.Errorf("it is cut: it has %d bytes of %d", info.Size(), length)
	}
	return m.readLines(bufio.NewReaderSize(io.LimitReader(file, length-headLength), 1<<20))
}

func (m *Mirror) readLines(r *bufio.Reader) error {
	rested, total := false, int64(0)
	for number := int64(1); ; number++ {
		line, err := r.ReadBytes('\n')
		if errors.Is(err, io.EOF) && len(line) == 0 {
			break
		}
		sum, text, ok := bytes.Cut(bytes.TrimSuffix(line, []byte("\n")), []byte(" "))
		if err != nil || !ok || string(sum) != fmt.Sprintf("%08x", crc32.Checksum(text, castagnoli)) {
			return fmt.Errorf("line %d: bad checksum", number)
		}
		var p numbered
		if err := json.Unmarshal(text, &p); err != nil {
			return fmt.Errorf("line %d: %w", number, err)
		}
		if p.Number != number {
			return fmt.Errorf("line %d: it has number %d: lines are missing", number, p.Number)
		}
		if err := errors.Join(p.Validate(), m.contradicts(p.Part)); err != nil {
			return fmt.Errorf("line %d: %w", number, err)
		}
		m.Take(p.Part, true)
		if rested = p.Rest != nil; rested {
			total = max(total, p.Rest.Total)
		}
	}
	if !rested {
		return errors.New("it is cut: it has no end")
	}
	return m.within(total)
}

// contradicts returns what in the next part of a file cannot follow the parts before.
func (m *Mirror) contradicts(p Part) error {
	if p.UUID == "" || m.uuid != "" && p.UUID != m.uuid {
		return fmt.Errorf("it contradicts itself: cluster %q after %q", p.UUID, m.uuid)
	}
	if p.Marks == nil {
		return nil
	}
	for i, tag := range p.Marks.Tags {
		next, total := m.Mark(p.Marks.Room, tag)
		if p.Marks.Next[i] < next || p.Marks.Total[i] < total {
			return fmt.Errorf("it contradicts itself: mark %s/%s falls from %d to %d (margin total %d to %d)",
				p.Marks.Room, tag, next, p.Marks.Next[i], total, p.Marks.Total[i])
		}
	}
	return nil
}

// within returns which mark has a margin total above all epochs'.
func (m *Mirror) within(most int64) error {
	for room, r := range m.rooms {
		for at, total := range r.total {
			if total > most {
				return fmt.Errorf("it contradicts itself: mark %s/%s has margin total %d, and no epoch had more "+
					"than %d", room, m.names[at], total, most)
			}
		}
	}
	return nil
}
