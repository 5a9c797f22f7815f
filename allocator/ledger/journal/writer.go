package journal

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	"go.etcd.io/etcd/client/pkg/v3/fileutil"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/internal/pending"
)

// slack is by how much a file may exceed twice the size of its contents.
const slack = 1 << 20

// writer is the only goroutine that touches the disk, and owns this struct. So an operation
// that hangs holds no lock and delays no caller.
type writer struct {
	*Journal
	disk  disk
	state State
	lock  file
	file  file
	size  int64     // of the file
	held  int64     // its size when it was last written anew
	torn  bool      // the file may end in half a line, or is not the one at path: it must be written anew
	retry time.Time // when to write anew after a failure
}

// open reads the journal, and writes it anew.
func (w *writer) open(head Record) error {
	if err := w.relock(); err != nil {
		return err
	}
	var content []byte
	err := w.do("read", func() (err error) {
		content, err = w.disk.Read(w.path)
		return err
	})
	head.Format = Format
	if errors.Is(err, fs.ErrNotExist) {
		w.state.add(head)
		return w.rewrite()
	}
	if err == nil {
		w.state, err = Parse(content)
	}
	switch s := &w.state; {
	case errors.Is(err, errFormat):
		return err
	case err != nil && allocator.KindOf(err) == allocator.Refused:
		return fmt.Errorf("%w: it is damaged; if it is moved away, this instance starts without its memory, "+
			"and counts as missing in `march recover`", err)
	case err != nil:
		return err
	case s.UUID != head.UUID || s.Room != head.Room || s.Name != head.Name:
		return fmt.Errorf("it is of instance %s/%s of cluster %s; this is %s/%s of cluster %s",
			s.Room, s.Name, s.UUID, head.Room, head.Name, head.UUID)
	}
	return w.rewrite()
}

// run writes the appended records until the journal is closed.
func (w *writer) run() {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		select {
		case <-w.wake:
		case <-tick.C:
		}
		began := time.Now()
		b, closing := w.take(w.torn && began.Before(w.retry))
		if b != nil || closing || !began.Before(w.retry) {
			err := w.write(b)
			if err != nil {
				// Retries take at most a tenth of the time, so that they do not keep a full
				// disk full.
				ended := time.Now()
				w.retry = ended.Add(max(lookEvery, 9*ended.Sub(began)))
			}
			w.finish(b, err)
		}
		if closing {
			return
		}
	}
}

// write writes a batch, nil for none, and checks that its file is still the one at path.
func (w *writer) write(b *batch) error {
	if b != nil {
		w.state.Steps = nil // only the start reads them
		for _, r := range b.records {
			w.state.add(r)
		}
	}
	if w.torn || w.size > 2*w.held+slack {
		return w.rewrite()
	}
	if b != nil {
		line := encode(b.records...)
		w.size += int64(len(line))
		w.torn = true
		if err := w.put(w.file, line); err != nil {
			return err
		}
		if err := w.sync(w.file); err != nil {
			return err
		}
		w.torn = false
	}
	// The check comes after the sync: records in a file that is gone are written again before
	// any caller is told.
	var there bool
	err := w.do("stat", func() (err error) {
		there, err = w.there(w.file, w.path)
		if err == nil && there {
			there, err = w.there(w.lock, w.path+lockSuffix)
		}
		return err
	})
	if err != nil || there {
		return err
	}
	w.log.Warn("the journal's file was removed or replaced: it is written anew, whole", "path", w.path)
	return w.rewrite()
}

// there reports whether f is the file at path.
func (w *writer) there(f file, path string) (bool, error) {
	ours, err := f.Stat()
	if err != nil {
		return false, err
	}
	found, err := w.disk.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil && os.SameFile(ours, found), err
}

const lockSuffix = ".lock"

// relock takes the lock, unless it is still held.
func (w *writer) relock() error {
	before := w.lock
	err := w.do("lock", func() error {
		path := w.path + lockSuffix
		if before != nil {
			if there, err := w.there(before, path); err != nil || there {
				return err
			}
		}
		lock, err := w.disk.Lock(path)
		if errors.Is(err, fileutil.ErrLocked) {
			return w.locked(path)
		}
		if err == nil {
			w.lock = lock
		}
		return err
	})
	if before != nil && w.lock != before {
		_ = w.do("close", before.Close)
	}
	return err
}

// errLocked is the error where another process has the journal.
var errLocked = errors.New("another process has it")

// locked returns errLocked, with the process where the lock's file names it.
func (w *writer) locked(path string) error {
	var pid int
	var host, since string
	content, err := w.disk.Read(path)
	if _, scanErr := fmt.Sscan(string(content), &pid, &host, &since); err != nil || scanErr != nil {
		return fmt.Errorf("%w: give every instance a name of its own (--name)", errLocked)
	}
	return fmt.Errorf("%w (PID %d on host %s, since %s): give every instance a name of its own (--name); if that is "+
		"the process before this one and it hangs, end it there with `kill -9 %d`", errLocked, pid, host, since, pid)
}

// rewrite writes the whole memory into a new file, which takes the old one's place.
func (w *writer) rewrite() error {
	w.torn = true
	if err := w.relock(); err != nil { // the folder may be gone
		return err
	}
	var f file
	if err := w.do("create", func() (err error) {
		f, err = w.disk.Create(w.path + newSuffix)
		return err
	}); err != nil {
		return err
	}
	size, err := w.fill(f)
	if err == nil {
		err = w.sync(f)
	}
	if err == nil {
		err = w.do("rename", func() error { return w.disk.Rename(w.path+newSuffix, w.path) })
	}
	if err == nil {
		err = w.do("sync folder", func() error { return w.disk.SyncDir(filepath.Dir(w.path)) })
	}
	if err != nil {
		_ = w.do("remove", func() error {
			_ = f.Close()
			return w.disk.Remove(w.path + newSuffix)
		})
		return err
	}
	if w.file != nil {
		_ = w.do("close", w.file.Close)
	}
	// From here on lines are appended: the writer stands at the file's end.
	w.file, w.size, w.held, w.torn = f, size, size, false
	return nil
}

const newSuffix = ".new"

// fill writes the whole memory in pieces, and returns how many bytes that is.
func (w *writer) fill(f file) (size int64, err error) {
	buffered := bufio.NewWriterSize(putter{w, f}, 1<<16)
	for r := range w.state.records {
		n, err := buffered.Write(encode(r))
		size += int64(n)
		if err != nil {
			return size, err
		}
	}
	return size, buffered.Flush()
}

type putter struct {
	w *writer
	f file
}

func (p putter) Write(b []byte) (int, error) {
	if err := p.w.put(p.f, b); err != nil {
		return 0, err
	}
	return len(b), nil
}

func (w *writer) put(f file, b []byte) error {
	return w.do("write", func() error {
		_, err := f.Write(b)
		return err
	})
}

func (w *writer) sync(f file) error {
	return w.do("sync", f.Sync)
}

// close closes the files that are open. Records that were appended are synced.
func (w *writer) close() error {
	return w.do("close", func() error {
		var errs []error
		for _, f := range []file{w.file, w.lock} {
			if f != nil {
				errs = append(errs, f.Close())
			}
		}
		return errors.Join(errs...)
	})
}

// do performs one operation of the disk, and notes if it takes longer than patience.
func (j *Journal) do(what string, op func() error) error {
	began, number := time.Now(), j.count()
	noticing := time.AfterFunc(patience, func() { j.hangs(number, &hangError{what, began}) })
	err := op()
	noticing.Stop()
	j.count()
	return err
}

// count counts the begin or the end of an operation of the disk.
func (j *Journal) count() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.mu.number++
	return j.mu.number
}

// hangs notes that the operation of a number hangs, unless it has ended.
func (j *Journal) hangs(number int, err *hangError) {
	var said pending.Lines
	defer said.Write(j.log)
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.mu.number == number {
		_ = j.fails(&said, err, err.since)
	}
}

// finish notes the outcome of a write. The batch is nil if the write had none.
func (j *Journal) finish(b *batch, err error) {
	var said pending.Lines
	defer said.Write(j.log)
	j.mu.Lock()
	defer j.mu.Unlock()
	switch {
	case err != nil:
		err = j.fails(&said, err, time.Now())
	case !j.mu.since.IsZero():
		said.Add(hclog.Info, "the journal can be written again", "path", j.path, "after",
			time.Since(j.mu.since).Round(time.Millisecond))
		j.mu.since, j.mu.trouble = time.Time{}, &trouble{begun: make(chan struct{})}
	}
	if b != nil {
		b.err = err
		close(b.done)
	}
}

// take returns the batch to write, unless the batch must wait, and reports whether the journal
// is to be closed.
func (j *Journal) take(wait bool) (b *batch, closing bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if wait && !j.mu.closing {
		return nil, false
	}
	b, j.mu.batch = j.mu.batch, nil
	return b, j.mu.closing
}

// fails notes why nothing can be written, and since when unless the disk was in trouble before.
// It returns the error of callers. The caller holds the lock.
func (j *Journal) fails(said *pending.Lines, err error, since time.Time) error {
	t := j.mu.trouble
	if j.mu.since.IsZero() {
		j.mu.since = since
		said.Warn("the journal cannot be written: nothing is leased until it can", "path", j.path, "error", err)
	} else {
		t = &trouble{begun: make(chan struct{})} // the old one's error is read without the lock
		j.mu.trouble = t
	}
	t.err = j.unwritable(err, j.mu.since)
	close(t.begun)
	return t.err
}

func (j *Journal) unwritable(err error, since time.Time) error {
	return allocator.Errorf(allocator.Unavailable, "%w", &UnwritableError{Path: j.path, Since: since, Err: err})
}

// trouble says why nothing can be written. The journal replaces it when the trouble is over.
type trouble struct {
	begun chan struct{} // closed when err is set
	err   error
}

// hangError says that an operation of the disk does not end.
type hangError struct {
	what  string
	since time.Time
}

func (e *hangError) Error() string {
	return fmt.Sprintf("the disk hangs: it was asked to %s at %s, and has not answered", e.what,
		e.since.Format(time.RFC3339))
}

// UnwritableError says that a journal cannot be written.
type UnwritableError struct {
	Path  string
	Since time.Time
	Err   error // what the disk said
}

func (e *UnwritableError) Error() string {
	return fmt.Sprintf("journal %s cannot be written, nothing is leased until it can, since %s: %v", e.Path,
		e.Since.Format(time.RFC3339), e.Err)
}

// Unwrap returns what the disk said.
func (e *UnwritableError) Unwrap() error { return e.Err }

// Fault is why a journal cannot be written.
type Fault int

// The faults. Other is the zero value.
const (
	Other  Fault = iota
	Full         // its disk
	Denied       // the process may not write there
	Hangs        // its disk
	Shared       // another process has it
)

// Fault returns why.
func (e *UnwritableError) Fault() Fault {
	var hangs *hangError
	switch {
	case errors.As(e.Err, &hangs):
		return Hangs
	case errors.Is(e.Err, syscall.ENOSPC), errors.Is(e.Err, syscall.EDQUOT), errors.Is(e.Err, syscall.EFBIG):
		return Full
	case errors.Is(e.Err, fs.ErrPermission), errors.Is(e.Err, syscall.EROFS):
		return Denied
	case errors.Is(e.Err, errLocked):
		return Shared
	}
	return Other
}
