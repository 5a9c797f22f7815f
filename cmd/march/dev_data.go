//go:build !nodev

package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

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
	Dir       string
	Temporary bool
	lock      *fileutil.LockedFile
}

// Etcd is the folder of etcd's data.
func (d *devData) Etcd() string { return filepath.Join(d.Dir, "etcd") }

// Journal is the folder of the rooms' journals.
func (d *devData) Journal() string { return filepath.Join(d.Dir, "journal") }

func (d *devData) unfinished() string { return filepath.Join(d.Dir, "unfinished") }

// Open makes, locks and tidies the directory. If no directory was named, it makes a
// temporary one.
func (d *devData) Open() error {
	if d.Dir == "" {
		dir, err := os.MkdirTemp("", "march-dev-")
		if err != nil {
			return allocator.Errorf(allocator.Invalid, "temporary data directory: %w", err)
		}
		d.Dir, d.Temporary = dir, true
	}
	if err := os.MkdirAll(d.Dir, 0o700); err != nil {
		return allocator.Errorf(allocator.Invalid, "data-dir: %w", err)
	}
	var err error
	d.lock, err = fileutil.TryLockFile(filepath.Join(d.Dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if errors.Is(err, fileutil.ErrLocked) {
		return allocator.Errorf(allocator.Refused, "data-dir: %s is in use by another march dev", d.Dir)
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
		return os.RemoveAll(d.Etcd())
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	if _, err := os.Stat(d.Etcd()); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.WriteFile(d.unfinished(), nil, 0o600); err != nil {
		return err
	}
	return d.sync()
}

// Finish ends the first start. It must return before any room runs: from then on
// the data is always kept.
func (d *devData) Finish() error {
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
	dir, err := os.Open(d.Dir)
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }()
	return dir.Sync()
}

// Close unlocks the directory and removes a temporary one.
func (d *devData) Close() {
	if d.lock != nil {
		_ = d.lock.Close()
	}
	if d.Temporary {
		_ = os.RemoveAll(d.Dir)
	}
}

// firstDevLayout returns the first layout of a data directory: rooms of equal ranges. If machines
// is a name, a tenth is reserved under that name. Its errors are Invalid.
func firstDevLayout(names []string, boundary int64, machines allocator.Room) (allocator.Layout, error) {
	if n := len(names); n < 1 || n > mostDevRooms {
		return allocator.Layout{}, allocator.Errorf(allocator.Invalid, "rooms: %d named; allowed: 1 to %d", n,
			mostDevRooms)
	}
	rooms := make([]allocator.Room, len(names))
	for i, name := range names {
		var err error
		if rooms[i], err = allocator.ParseRoom(strings.TrimSpace(name)); err != nil {
			return allocator.Layout{}, allocator.Errorf(allocator.Invalid, "rooms: %w", err)
		}
	}
	if boundary < int64(len(rooms)) {
		return allocator.Layout{}, allocator.Errorf(allocator.Invalid,
			"boundary: %d; allowed: at least one residue for each of the %d rooms, up to %d", boundary,
			len(rooms), int64(allocator.MaxID))
	}
	if machines == "" {
		return allocator.EqualLayout(boundary, rooms)
	}
	return layoutWithMachines(boundary, rooms, machines)
}

// layoutWithMachines returns a first layout of which the last tenth is reserved.
func layoutWithMachines(boundary int64, rooms []allocator.Room, name allocator.Room) (allocator.Layout, error) {
	reserved := allocator.Range{Lower: boundary - boundary/10, Upper: boundary}
	if reserved.Lower == boundary || reserved.Lower < int64(len(rooms)) {
		return allocator.Layout{}, allocator.Errorf(allocator.Invalid, "boundary: %d; allowed with --cosid-machines: "+
			"at least 10, and a residue for each of the %d rooms below the last tenth", boundary, len(rooms))
	}
	l, err := allocator.EqualLayout(reserved.Lower, rooms)
	l.Boundary, l.Reserved = boundary, map[allocator.Room]allocator.Range{name: reserved}
	return l, err
}
