package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/record"
)

// TestJournalFolderRemoved deletes the folder of a running room's journal. Before, the room
// did not notice. Now issuing goes on, the journal is soon there again, and after a kill -9
// it has all issued IDs.
func TestJournalFolderRemoved(t *testing.T) {
	t.Parallel()
	address, start := consoleProcess(t, `{"boundary":100,"rooms":{"a":{"lower":0,"upper":100}}}`)
	dir := filepath.Join(t.TempDir(), "journal")
	remembered := func() (record.Memory, error) {
		files, _ := filepath.Glob(filepath.Join(dir, "*", "a", "one.journal"))
		if len(files) != 1 {
			return record.Memory{}, fmt.Errorf("%d journals", len(files))
		}
		return ledger.ReadJournal(files[0])
	}
	var s issued
	above, all := map[allocator.Tag]int64{"order": 0, "item": 0}, allocator.Range{Upper: 100}
	for range 3 {
		p := start("room", "a", "--name", "one", "--grpc", address(1), "--http", "", "--journal",
			dir, "--create-tags").ready(t)
		ctx, stop := context.WithCancel(t.Context())
		var callers sync.WaitGroup
		callers.Go(func() { above = s.hammer(ctx, t, address(1), 100, all, above) })
		// issues waits until more IDs were issued than the room held.
		issues := func() {
			t.Helper()
			want := s.count.Load() + 20_000
			if err := poll(patience(t), func() bool { return s.count.Load() >= want }); err != nil {
				t.Fatal(err)
			}
		}
		issues()
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
		if err := poll(patience(t), func() bool { _, err := remembered(); return err == nil }); err != nil {
			t.Fatalf("the journal is gone: %v", err)
		}
		issues()
		if _, err := p.stop(patience(t), syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		stop()
		callers.Wait()
		m, err := remembered()
		if err != nil || m.Room != "a" || len(m.Epochs) == 0 {
			t.Fatalf("%+v, %v", m, err)
		}
		marks := make(map[allocator.Tag]int64)
		for _, mark := range m.Marks {
			marks[mark.Tag] = mark.Next
		}
		for tag, last := range above {
			if marks[tag] <= last {
				t.Errorf("the journal has mark %d of tag %s, and %d was issued", marks[tag], tag, last)
			}
		}
		if _, stderr := p.output(); !strings.Contains(stderr, "removed or replaced") {
			t.Errorf("not logged: %s", stderr)
		}
	}
	s.check(t)
}
