package disk

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/march-id/march/internal/programs"
)

// A disk is full after it was filled, hangs while it is frozen, and is gone at the end.
func TestDisk(t *testing.T) {
	programs.OnlyInAll(t, "of full disks")
	programs.Find(t, "mkfs.ext4")
	if os.Geteuid() != 0 {
		t.Skip("NOT RUN: tests of full disks (only root can mount one)")
	}
	dir := filepath.Join(t.TempDir(), "disk")
	d, err := Mount(dir)
	if err != nil {
		t.Fatal(err)
	}
	write := func() error { return os.WriteFile(filepath.Join(dir, "x"), make([]byte, 10_000), 0o600) }
	if err := errors.Join(write(), os.Remove(filepath.Join(dir, "x"))); err != nil {
		t.Error(err)
	}
	if err := d.Fill(); err != nil {
		t.Error(err)
	}
	if err := write(); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("full: %v", err)
	}
	if err := errors.Join(d.Free(), write(), d.Freeze()); err != nil {
		t.Error(err)
	}
	written := make(chan error)
	go func() { written <- write() }()
	select {
	case err := <-written:
		t.Errorf("frozen: %v", err)
	case <-time.After(200 * time.Millisecond):
	}
	if err := errors.Join(d.Thaw(), <-written, d.Close()); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}
