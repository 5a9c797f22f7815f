package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"go.etcd.io/etcd/client/pkg/v3/fileutil"

	"github.com/march-id/march/allocator"
)

// devData is march dev's data directory:
//
//	lock        locked by the march dev that uses it
//	etcd        etcd's data
//	journal     the rooms' journals
//	unfinished  there while the first start is under way
//
// An etcd that is killed in its very first start may never start again on what
// its data. So the data of an unfinished first start is deleted: no room ran on it
// yet, so no ID was issued. An etcd directory that is older than the first march
// dev is never deleted.
type devData struct {
	dir       string
	temporary bool
	lock      *fileutil.LockedFile
}

func (d *devData) etcd() string       { return filepath.Join(d.dir, "etcd") }
func (d *devData) journal() string    { return filepath.Join(d.dir, "journal") }
func (d *devData) unfinished() string { return filepath.Join(d.dir, "unfinished") }

// open makes, locks and tidies the directory. If no directory was named, it makes a
// temporary one.
func (d *devData) open() error {
	if d.dir == "" {
		dir, err := os.MkdirTemp("", "march-dev-")
		if err != nil {
			return allocator.Errorf(allocator.Invalid, "temporary data directory: %w", err)
		}
		d.dir, d.temporary = dir, true
	}
	if err := os.MkdirAll(d.dir, 0o700); err != nil {
		return allocator.Errorf(allocator.Invalid, "data-dir: %w", err)
	}
	var err error
	d.lock, err = fileutil.TryLockFile(filepath.Join(d.dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if errors.Is(err, fileutil.ErrLocked) {
		return allocator.Errorf(allocator.Refused, "data-dir: %s is in use by another march dev", d.dir)
	}
	if err == nil {
		err = d.begin()
	}
	if err != nil {
		return allocator.Errorf(allocator.Invalid, "data-dir: %w", err)
	}
	return nil
}

// begin marks a first start, and deletes the data of an earlier unfinished one.
func (d *devData) begin() error {
	_, err := os.Stat(d.unfinished())
	switch {
	case err == nil:
		return os.RemoveAll(d.etcd())
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	if _, err := os.Stat(d.etcd()); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.WriteFile(d.unfinished(), nil, 0o600); err != nil {
		return err
	}
	return d.sync()
}

// finish ends the first start. It must return before any room runs: from then on
// the data is always kept.
func (d *devData) finish() error {
	err := os.Remove(d.unfinished())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = d.sync()
	}
	if err != nil {
		return allocator.Errorf(allocator.Invalid, "data-dir: %w", err)
	}
	return nil
}

// sync makes the names in the directory survive a crash of the machine.
func (d *devData) sync() error {
	dir, err := os.Open(d.dir)
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }()
	return dir.Sync()
}

// close unlocks the directory and removes a temporary one.
func (d *devData) close() {
	if d.lock != nil {
		_ = d.lock.Close()
	}
	if d.temporary {
		_ = os.RemoveAll(d.dir)
	}
}
