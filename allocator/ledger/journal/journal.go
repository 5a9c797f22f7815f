// Package journal keeps the memory of an instance in a local file, so that it
// outlives the process: the epochs that the instance saw, the highest revision, its
// own marks, and the instances that were registered. An etcd that was restored from a
// backup has forgotten some of that; the journal has not.
//
// # The file
//
// Each write is a line: 8 hex digits, a space, and a JSON array of records. The
// digits are the CRC-32C of the array. The first record has the format, the cluster's
// uuid and the owner of the journal. A write is synced before its caller is told.
// Concurrent records share a line and a sync. When the file has grown to twice the
// size of its contents, the journal writes another file with the same contents, syncs
// it, and puts it in the first one's place.
//
// # Invariants
//
//  1. After Append has returned nil, its records survive a crash of the machine, in
//     the file that was at the path then.
//  2. After a write failed nothing is appended to the same file, as it may end in
//     half a line. The file is written anew first. So only a last line can be torn.
//  3. One process at a time has the journal open, by a lock on the file PATH.lock.
//  4. One goroutine touches the disk. If the disk hangs, that goroutine waits and owns
//     the data that it writes. No other goroutine waits with it for longer than
//     patience.
//
// # A disk in trouble
//
// The disk is in trouble when an operation takes longer than patience, or a write
// fails. Ready and Append then return an error at once, until a write succeeds. The
// writer tries again by itself. Each second, and after each write, it compares the file
// that it has open with the one at the path. If the file, its lock or the folder is
// gone, it writes the whole memory anew.
package journal

import (
	"context"
	"fmt"
	"io/fs"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/march-id/march/allocator"
)

const (
	// patience is how long one operation of the disk may take.
	patience = 2 * time.Second
	// lookEvery is how often the writer checks that its file still exists, and how often it
	// retries a failed operation.
	lookEvery = time.Second
	// openWithin bounds Open: it reads the whole file.
	openWithin = time.Minute
	// maxWaiting bounds how many records wait for the disk.
	maxWaiting = 10_000
)

// Journal is an open journal. Its methods are safe for concurrent use.
type Journal struct {
	path string
	log  hclog.Logger
	wake chan struct{} // has room for one
	done chan struct{} // closed when the writer has ended
	err  error         // of its end, then

	mu struct {
		sync.Mutex
		batch   *batch // taken by the next write; nil for none
		closing bool
		number  int       // of the last operation that the disk was given
		since   time.Time // when the trouble began, zero for none
		trouble *trouble  // never nil
	}
}

// batch is the records that share a line.
type batch struct {
	records []Record
	done    chan struct{} // closed when the records are written or have failed
	err     error         // valid after done is closed
}

// Open opens the journal of an instance, or makes it. The caller may read the state until the
// first Append. The errors of Open are Refused (another process has the journal, it cannot be
// read, or it is another instance's) and Unavailable (the disk does not answer, or ctx ended).
func Open(ctx context.Context, path string, head Record, log hclog.Logger) (*Journal, State, error) {
	return open(ctx, osDisk{}, path, head, log)
}

func open(ctx context.Context, d disk, path string, head Record, log hclog.Logger) (*Journal, State, error) {
	if log == nil {
		log = hclog.NewNullLogger()
	}
	j := &Journal{path: path, log: log, wake: make(chan struct{}, 1), done: make(chan struct{})}
	j.mu.trouble = &trouble{begun: make(chan struct{})}
	w := &writer{Journal: j, disk: d}
	opened := make(chan error, 1)
	go func() {
		defer close(j.done)
		err := w.open(head)
		opened <- err
		if err == nil {
			w.run()
		}
		j.err = w.close()
	}()
	ctx, cancel := context.WithTimeoutCause(ctx, openWithin, fmt.Errorf("the disk has not answered for %v", openWithin))
	defer cancel()
	select {
	case err := <-opened:
		if err != nil {
			<-j.done
			return nil, State{}, allocator.Errorf(allocator.Refused, "journal %s: %w", path, err)
		}
		return j, w.state, nil
	case <-ctx.Done():
		j.end() // when the disk answers
		return nil, State{}, allocator.Errorf(allocator.Unavailable,
			"journal %s was not opened: %w; check its disk and mount", path, context.Cause(ctx))
	}
}

// Read reads a journal that may be another process's. Its error is Refused.
func Read(path string) (State, error) {
	content, err := osDisk{}.Read(path)
	if err == nil {
		var s State
		if s, err = Parse(content); err == nil {
			return s, nil
		}
	}
	return State{}, allocator.Errorf(allocator.Refused, "journal %s: %w", path, err)
}

// Append adds a record and returns when the record is on the disk. Its error is Unavailable:
// the record may be on the disk or not, and the journal writes it when the disk works again.
// While the disk is in trouble, Append fails at once.
func (j *Journal) Append(ctx context.Context, r Record) error {
	b, t, err := j.add(r)
	if err != nil {
		return err
	}
	select {
	case <-b.done:
		return b.err
	case <-t.begun:
		return t.err
	case <-ctx.Done():
		return allocator.Errorf(allocator.Unavailable, "journal %s was not written in time: %w",
			j.path, context.Cause(ctx))
	}
}

// Note adds a record without waiting for the disk. It is for records that no answer depends on.
func (j *Journal) Note(r Record) error {
	_, _, err := j.add(r)
	return err
}

// add puts a record into the next batch.
func (j *Journal) add(r Record) (*batch, *trouble, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.mu.closing {
		return nil, nil, j.unwritable(fs.ErrClosed, time.Now())
	}
	b := j.mu.batch
	if b == nil {
		b = &batch{done: make(chan struct{})}
		j.mu.batch = b
	}
	if len(b.records) >= maxWaiting {
		return nil, nil, j.unwritable(fmt.Errorf("%d records wait for the disk", maxWaiting), time.Now())
	}
	b.records = append(b.records, r)
	j.rouse()
	return b, j.mu.trouble, nil
}

// rouse wakes the writer.
func (j *Journal) rouse() { allocator.Wake(j.wake) }

// Ready returns why nothing can be written, or nil. An instance calls it before a lease, so
// that no lease is wasted. It does not wait for the disk.
func (j *Journal) Ready() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	switch {
	case j.mu.closing:
		return j.unwritable(fs.ErrClosed, time.Now())
	case !j.mu.since.IsZero():
		return j.mu.trouble.err
	}
	return nil
}

// end makes the writer end after it has written what waits.
func (j *Journal) end() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.mu.closing = true
	j.rouse()
}

// Close writes what waits, and closes the journal. If the disk hangs, Close returns an error,
// and the writer ends when the disk answers. It may be called more than once.
func (j *Journal) Close() error {
	j.end()
	late := time.NewTimer(2 * patience)
	defer late.Stop()
	select {
	case <-j.done:
		return j.err
	case <-late.C:
		return allocator.Errorf(allocator.Unavailable,
			"journal %s was not closed within %v: its disk hangs", j.path, 2*patience)
	}
}
