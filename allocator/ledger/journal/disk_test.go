package journal

import (
	"fmt"
	"io/fs"
	"math/rand/v2"
	"sync"
	"time"
)

// fate is the outcome of an operation of the disk.
type fate int

const (
	well    fate = iota
	notDone      // an error; nothing happened
	lost         // it happened; the answer is an error
	hangs        // it happens once the disk works again; until then there is no answer
	slow         // it takes 200 ms to just under patience
)

// faulty is a disk on which one kind of operation has a fate.
type faulty struct {
	osDisk
	mu struct {
		sync.Mutex
		op    string
		fate  fate
		err   error
		again chan struct{} // closed when the disk works again
	}
}

// is gives one kind of operation a fate from now on.
func (d *faulty) is(op string, f fate, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mu.op, d.mu.fate, d.mu.err, d.mu.again = op, f, err, make(chan struct{})
}

func (d *faulty) isWell() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mu.fate = well
	close(d.mu.again)
}

func (d *faulty) do(op string, f func() error) error {
	d.mu.Lock()
	fate, err, again := d.mu.fate, d.mu.err, d.mu.again
	if op != d.mu.op {
		fate = well
	}
	d.mu.Unlock()
	switch fate {
	case notDone:
		return fmt.Errorf("%s: %w", op, err)
	case lost:
		_ = f()
		return fmt.Errorf("%s: %w", op, err)
	case slow:
		time.Sleep(200*time.Millisecond + rand.N(patience-200*time.Millisecond))
		return f()
	case hangs:
		<-again
		return f()
	default:
		return f()
	}
}

func (d *faulty) Lock(path string) (f file, err error) {
	err = d.do("lock", func() (err error) { f, err = d.osDisk.Lock(path); return err })
	return d.opened(f, err)
}

func (d *faulty) Create(path string) (f file, err error) {
	err = d.do("create", func() (err error) { f, err = d.osDisk.Create(path); return err })
	return d.opened(f, err)
}

// opened returns a file with the disk's faults. It closes the file if the answer was
// lost, as the kernel does for a process that never learned the file's number.
func (d *faulty) opened(f file, err error) (file, error) {
	if err != nil {
		if f != nil {
			_ = f.Close()
		}
		return nil, err
	}
	return faultyFile{f, d}, nil
}

func (d *faulty) Read(path string) (b []byte, err error) {
	err = d.do("read", func() (err error) { b, err = d.osDisk.Read(path); return err })
	return b, err
}

func (d *faulty) Stat(path string) (info fs.FileInfo, err error) {
	err = d.do("stat", func() (err error) { info, err = d.osDisk.Stat(path); return err })
	return info, err
}

func (d *faulty) Rename(from, to string) error {
	return d.do("rename", func() error { return d.osDisk.Rename(from, to) })
}

func (d *faulty) SyncDir(path string) error {
	return d.do("sync folder", func() error { return d.osDisk.SyncDir(path) })
}

func (d *faulty) Remove(path string) error {
	return d.do("remove", func() error { return d.osDisk.Remove(path) })
}

type faultyFile struct {
	file
	disk *faulty
}

// Write fails half way if its fate is notDone.
func (f faultyFile) Write(b []byte) (n int, err error) {
	err = f.disk.do("write", func() (err error) { n, err = f.file.Write(b); return err })
	if err != nil && n == 0 {
		n, _ = f.file.Write(b[:len(b)/2])
	}
	return n, err
}

func (f faultyFile) Sync() error { return f.disk.do("sync", f.file.Sync) }

func (f faultyFile) Close() error { return f.disk.do("close", f.file.Close) }
