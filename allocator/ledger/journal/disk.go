package journal

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/fileutil"

	"github.com/march-id/march/allocator"
)

// disk is the journal's view of the file system, with one method for each operation. An
// operation may fail, may take effect although it reports an error, and may never return. Tests
// put a disk with faults in its place.
type disk interface {
	// Lock makes a file and the folders above it, and locks the file until it is closed. The file then names this
	// process. The error is fileutil.ErrLocked if another process has the lock.
	Lock(path string) (file, error)
	Read(path string) ([]byte, error)
	Create(path string) (file, error)
	Stat(path string) (fs.FileInfo, error)
	Rename(from, to string) error
	// SyncDir makes the names in a folder survive a crash of the machine.
	SyncDir(path string) error
	Remove(path string) error
}

type file interface {
	io.WriteCloser
	Sync() error
	Stat() (fs.FileInfo, error)
}

type osDisk struct{}

func (osDisk) Lock(path string) (file, error) {
	if err := makeDir(filepath.Dir(path)); err != nil {
		return nil, err
	}
	f, err := fileutil.TryLockFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	host, _ := os.Hostname()
	holder := fmt.Sprintf("%d %s %s\n", os.Getpid(), cmp.Or(host, "unknown"), time.Now().UTC().Format(time.RFC3339))
	if f.Truncate(0) == nil { // the lock is good without its holder's name, as where the disk is full
		_, _ = f.WriteAt([]byte(holder), 0)
	}
	return f, nil
}

// makeDir makes a folder and those above it. They survive a crash of the
// machine.
func makeDir(path string) error {
	parent := filepath.Dir(path)
	err := os.Mkdir(path, 0o700)
	if errors.Is(err, fs.ErrNotExist) && parent != path {
		if err := makeDir(parent); err != nil {
			return err
		}
		err = os.Mkdir(path, 0o700)
	}
	switch {
	case err == nil:
		return osDisk{}.SyncDir(parent)
	case errors.Is(err, fs.ErrExist):
		return nil
	default:
		return err
	}
}

// maxFile bounds how much of a file is read: enough for some millions of tags.
const maxFile = 1 << 30

func (osDisk) Read(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.Size() > maxFile {
		return nil, allocator.Errorf(allocator.Refused, "it has %d bytes; allowed: up to %d", info.Size(), maxFile)
	}
	return os.ReadFile(path)
}

func (osDisk) Create(path string) (file, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, err // not f: a nil *os.File is not a nil file
	}
	return f, nil
}

func (osDisk) Stat(path string) (fs.FileInfo, error) { return os.Stat(path) }

func (osDisk) Rename(from, to string) error { return os.Rename(from, to) }

func (osDisk) SyncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

func (osDisk) Remove(path string) error { return os.Remove(path) }
