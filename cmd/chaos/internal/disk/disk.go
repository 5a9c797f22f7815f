// Package disk makes a small file system that can be full and can hang. It is an ext4
// in a file, mounted through a loop device, which needs root on Linux.
//
// A run that is killed leaves the disk mounted; `umount DIR` unmounts it.
package disk

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// size is enough for journals and the file system itself.
const size = 32 << 20

// Disk is a mounted file system.
type Disk struct{ dir string }

// Mount makes a file system and mounts it at dir. The error says what this machine does not
// allow.
func Mount(dir string) (*Disk, error) {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return nil, err
	}
	image := dir + ".img"
	if err := os.WriteFile(image, nil, 0o600); err != nil {
		return nil, err
	}
	if err := os.Truncate(image, size); err != nil {
		return nil, err
	}
	d := &Disk{dir}
	if err := errors.Join(run("mkfs.ext4", "-q", "-F", image), run("mount", "-o", "loop", image, dir)); err != nil {
		return nil, errors.Join(err, os.Remove(image))
	}
	return d, nil
}

func run(name string, args ...string) error {
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", name, err, out)
	}
	return nil
}

// Fill leaves no space on the disk.
func (d *Disk) Fill() error {
	f, err := os.Create(d.filler())
	if err != nil {
		return err
	}
	for block := make([]byte, 1<<16); len(block) > 0; {
		if _, err = f.Write(block); err != nil {
			block = block[:len(block)/2] // up to the last byte
		}
	}
	if !errors.Is(err, syscall.ENOSPC) {
		return errors.Join(err, f.Close())
	}
	return f.Close()
}

// Free frees the space again.
func (d *Disk) Free() error { return os.Remove(d.filler()) }

func (d *Disk) filler() string { return filepath.Join(d.dir, "filler") }

// Freeze makes each write to the disk hang until Thaw. A process that hangs so cannot be
// killed.
func (d *Disk) Freeze() error { return run("fsfreeze", "-f", d.dir) }

// Thaw ends Freeze.
func (d *Disk) Thaw() error { return run("fsfreeze", "-u", d.dir) }

// Close unmounts the disk and removes it. No process may have a file open there.
func (d *Disk) Close() error {
	_ = d.Thaw() // mostly it is not frozen
	err := run("umount", d.dir)
	for range 50 {
		if err == nil {
			break
		}
		time.Sleep(100 * time.Millisecond) // a killed process is about to end
		err = run("umount", d.dir)
	}
	return errors.Join(err, os.Remove(d.dir+".img"))
}
