// Package journal keeps what an instance remembers in a local file, so that it
// outlives the process: the epochs that it saw, the highest revision, its own
// marks, who was registered. An etcd that was restored from a backup has
// forgotten some of that; the journal has not.
//
// # The file
//
// A line for each record: the CRC-32C of what follows in 8 hex digits, a space,
// JSON. The first has the format, the cluster's uuid and whose journal it is.
// Records are appended, and synced before anybody is told; concurrent ones share
// a line and a sync. When the file has grown to twice what it holds it is
// written anew: into another file, which is synced and takes its place.
//
// # Invariants
//
//  1. What Append returned nil for is there after a crash of the machine.
//  2. After a write failed nothing is appended to the same file: it may end in
//     half a line. It is written anew first. So only a last line can be torn.
//  3. One process at a time has it open: a lock on the file PATH.lock.
package journal

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"go.etcd.io/etcd/client/pkg/v3/fileutil"

	"github.com/march-id/march/allocator"
)

// maxFile bounds what is read of a file: some millions of tags.
const maxFile = 1 << 30

// slack is by how much a file may exceed twice what it holds.
const slack = 1 << 20

// Journal is an open journal. Append may be called by many at once.
type Journal struct {
	path string
	lock *fileutil.LockedFile
	// create makes a file to write; tests replace it.
	create func(path string) (file, error)

	pending struct {
		sync.Mutex
		batch *batch // that the next write takes, nil for none
	}

	mu struct { // held while the file is written
		sync.Mutex
		state  State
		file   file
		size   int64 // of the file
		held   int64 // its size when it was written anew
		broken error // why it must be written anew
		closed bool
	}
}

type file interface {
	io.WriteCloser
	Sync() error
}

// batch is records that share a line.
type batch struct {
	record Record
	done   bool // guarded by mu
	err    error
}

// Open opens the journal of an instance, or makes it. Its errors are Refused:
// another process has it, it cannot be read, or it is another instance's.
func Open(path string, head Record) (*Journal, State, error) {
	j := &Journal{path: path, create: func(path string) (file, error) {
		return os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	}}
	s, err := j.open(head)
	if err != nil {
		if j.lock != nil {
			_ = j.lock.Close()
		}
		return nil, State{}, allocator.Errorf(allocator.Refused, "journal %s: %w", path, err)
	}
	return j, s, nil
}

func (j *Journal) open(head Record) (State, error) {
	if err := os.MkdirAll(filepath.Dir(j.path), 0o700); err != nil {
		return State{}, err
	}
	var err error
	j.lock, err = fileutil.TryLockFile(j.path+".lock", os.O_RDWR|os.O_CREATE, 0o600)
	if errors.Is(err, fileutil.ErrLocked) {
		return State{}, errors.New("another process has it: give every instance a name of its own (--name)")
	}
	if err != nil {
		return State{}, err
	}
	head.Format = Format
	s, err := read(j.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		s.add(head)
	case allocator.KindOf(err) == allocator.Refused && err != nil:
		return State{}, fmt.Errorf("%w: it is damaged; moved away, this instance starts without what it remembered, and a `march recover` has to go on without that", err)
	case err != nil:
		return State{}, err
	case s.UUID != head.UUID || s.Room != head.Room || s.Name != head.Name:
		return State{}, allocator.Errorf(allocator.Refused, "it is of instance %s/%s of cluster %s; this is %s/%s of cluster %s", s.Room, s.Name, s.UUID, head.Room, head.Name, head.UUID)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.mu.state = s
	if err := j.rewrite(); err != nil {
		return State{}, err
	}
	return s, nil
}

// Read reads a journal that may be another process's. Its error is Refused.
func Read(path string) (State, error) {
	s, err := read(path)
	if err != nil {
		return State{}, allocator.Errorf(allocator.Refused, "journal %s: %w", path, err)
	}
	return s, nil
}

func read(path string) (State, error) {
	f, err := os.Open(path)
	if err != nil {
		return State{}, err
	}
	defer func() { _ = f.Close() }()
	content, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return State{}, err
	}
	if len(content) > maxFile {
		return State{}, allocator.Errorf(allocator.Refused, "it has more than %d bytes", maxFile)
	}
	return Parse(content)
}

// Append adds a record and returns when it is on the disk. Its error is
// Unavailable: it may be there or not.
func (j *Journal) Append(r Record) error {
	j.pending.Lock()
	b := j.pending.batch
	if b == nil {
		b = &batch{}
		j.pending.batch = b
	}
	b.add(r)
	j.pending.Unlock()

	j.mu.Lock()
	defer j.mu.Unlock()
	if b.done {
		return b.err // somebody who waited with us wrote it
	}
	j.pending.Lock()
	j.pending.batch = nil
	j.pending.Unlock()
	b.done, b.err = true, j.failed(j.write(b.record))
	return b.err
}

// add joins two records; what both have in order.
func (b *batch) add(r Record) {
	to := &b.record
	to.Incarnations = append(to.Incarnations, r.Incarnations...)
	to.Epochs = append(to.Epochs, r.Epochs...)
	to.Version = max(to.Version, r.Version)
	switch {
	case r.Revision == 0:
	case to.Revision == 0 || to.Epoch == r.Epoch:
		to.Epoch, to.Revision = r.Epoch, max(to.Revision, r.Revision)
	default: // of two epochs: neither is written, others follow
		to.Epoch, to.Revision = "", 0
	}
	to.Rooms, to.Seen = append(to.Rooms, r.Rooms...), append(to.Seen, r.Seen...)
	if r.SeenUnder != "" {
		to.SeenUnder = r.SeenUnder
	}
	if r.Barred != "" {
		to.Barred = r.Barred
	}
	to.Blank, to.Vouched = to.Blank || r.Blank, to.Vouched || r.Vouched
	to.Marks = append(to.Marks, r.Marks...)
}

// Ready returns why nothing can be written. After a write failed it tries again,
// so that whoever is about to lease knows first, and wastes nothing.
func (j *Journal) Ready() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.mu.broken == nil {
		return nil
	}
	return j.failed(j.rewrite())
}

func (j *Journal) failed(err error) error {
	if err == nil {
		return nil
	}
	return allocator.Errorf(allocator.Unavailable, "journal %s cannot be written, nothing is leased until it can: %w", j.path, err)
}

// write writes a record. The caller holds mu.
func (j *Journal) write(r Record) error {
	if j.mu.closed {
		return fs.ErrClosed
	}
	j.mu.state.add(r)
	if j.mu.broken != nil || j.mu.size > 2*j.mu.held+slack {
		return j.rewrite()
	}
	line := encode(r)
	_, err := j.mu.file.Write(line)
	if err == nil {
		err = j.mu.file.Sync()
	}
	j.mu.size += int64(len(line))
	j.mu.broken = err
	return err
}

// rewrite writes all that is held into a new file, which takes the place of the
// old one. The caller holds mu.
func (j *Journal) rewrite() (err error) {
	if j.mu.closed {
		return fs.ErrClosed
	}
	defer func() { j.mu.broken = err }()
	f, err := j.create(j.path + ".new")
	if err != nil {
		return err
	}
	buffered, size := bufio.NewWriter(f), int64(0)
	for _, r := range j.mu.state.records() {
		n, writeErr := buffered.Write(encode(r))
		size += int64(n)
		err = errors.Join(err, writeErr)
	}
	if err = errors.Join(err, buffered.Flush()); err == nil {
		err = f.Sync()
	}
	if err == nil {
		err = os.Rename(j.path+".new", j.path)
	}
	if err == nil {
		err = syncDir(filepath.Dir(j.path))
	}
	if err != nil {
		_ = f.Close()
		_ = os.Remove(j.path + ".new")
		return err
	}
	if j.mu.file != nil {
		_ = j.mu.file.Close()
	}
	// Appended to from here on: the writer stands at its end.
	j.mu.file, j.mu.size, j.mu.held = f, size, size
	return nil
}

// syncDir makes the names in a directory survive a crash of the machine.
func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// Close closes the journal. It may be called more than once.
func (j *Journal) Close() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.mu.closed {
		return nil
	}
	j.mu.closed = true
	return errors.Join(j.mu.file.Close(), j.lock.Close())
}
