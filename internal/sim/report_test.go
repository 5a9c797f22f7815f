package sim_test

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"

	"google.golang.org/grpc"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/record"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/room"
)

// reports collects the parts of an instance's answer.
type reports struct {
	grpc.ServerStream

	ctx   context.Context //nolint:containedctx // a stream has one
	parts []*marchv1.ReportMarksResponse
}

// Context implements grpc.ServerStream.
func (r *reports) Context() context.Context { return r.ctx }

// Send implements grpc.ServerStreamingServer.
func (r *reports) Send(part *marchv1.ReportMarksResponse) error {
	r.parts = append(r.parts, part)
	return nil
}

func (r *reports) memory() (record.Memory, error) {
	m, err := room.MemoryFromProto(r.parts[0])
	for _, part := range r.parts {
		for _, mark := range part.GetMarks() {
			m.Marks = append(m.Marks, record.RememberedMark{Tag: allocator.Tag(mark.GetTag()), Next: mark.GetNext(),
				Total: mark.GetMarginTotal()})
		}
	}
	return m, err
}

// journalsOfTheDead reads the journals of processes that do not run.
func (w *world) journalsOfTheDead() (all []record.Memory) {
	alive := make(map[string]bool)
	for _, p := range w.alive() {
		alive[p.journal] = true
	}
	dirs, _ := os.ReadDir(w.journals) // there may be none
	for _, dir := range dirs {
		if path := filepath.Join(w.journals, dir.Name()); !alive[path] {
			all = append(all, w.journalsIn(path)...)
		}
	}
	return all
}

// journalsIn reads the journals in a directory.
func (w *world) journalsIn(path string) (all []record.Memory) {
	_ = filepath.WalkDir(path, func(file string, _ fs.DirEntry, _ error) error { // there may be none
		if filepath.Ext(file) == ".journal" {
			m, err := ledger.ReadJournal(file)
			if err != nil {
				w.Errorf("journal: %v", err)
			}
			all = append(all, m)
		}
		return nil
	})
	return all
}
