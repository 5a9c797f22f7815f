package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"github.com/march-id/march/cmd/chaos/internal/cluster"
	"github.com/march-id/march/cmd/chaos/internal/runlog"
)

// journalFaults hurt the memory of instances.
func journalFaults() []fault {
	return []fault{
		{"remove journal", "an instance is killed, and started again without its journal", removeJournal},
		{"remove folder of journals", "the folder of running instances' journals is deleted", removeFolder},
		{"limit files of room", "an instance cannot write its journal any longer", limitJournal},
	}
}

// diskFaults hurt the disk of the journals, which not every machine allows.
func diskFaults() []fault {
	return []fault{
		{"fill disk of journals", "no instance has space for its journal", fillDisk},
		{"hang disk of journals", "what instances write to their journals hangs", hangDisk},
	}
}

func removeJournal(_ context.Context, d *driver, r *rand.Rand) (*injury, error) {
	s, err := d.instance(r)
	if err != nil {
		return nil, err
	}
	if err := s.Down(); err != nil {
		return nil, err
	}
	files, err := s.Journals()
	if err != nil {
		return nil, err
	}
	for _, f := range files {
		if err := os.Remove(f); err != nil {
			return nil, err
		}
	}
	d.journalLost[id(s)] = true
	return &injury{target: s.ID, detail: fmt.Sprintf("%d files", len(files)), end: func(context.Context) error {
		s.Keep(true)
		return nil
	}}, nil
}

// removeFolder deletes the journals of a room while its instances run: each must write its own
// anew, whole, by itself.
func removeFolder(_ context.Context, d *driver, r *rand.Rand) (*injury, error) {
	of := d.instancesOf(pick(r, d.Rooms))
	dir := ""
	for _, s := range of {
		files, err := s.Journals()
		if err != nil {
			return nil, err
		}
		if d.isPaused(s) || !s.Running() || len(files) == 0 {
			return nil, fmt.Errorf("%w: %s is stopped", errSkip, s.ID)
		}
		dir = filepath.Dir(files[0])
	}
	if err := os.RemoveAll(dir); err != nil {
		return nil, fmt.Errorf("%w: %w", errSkip, err) // a journal was written there at that moment
	}
	return &injury{target: names(of), end: func(ctx context.Context) error {
		for _, s := range of {
			began := time.Now()
			waiting, cancel := context.WithTimeout(ctx, limit)
			err := cluster.Poll(waiting, s.ID+"'s journal", func() bool {
				files, err := s.Journals()
				return err == nil && len(files) > 0 || d.isPaused(s) || !s.Running()
			})
			cancel()
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if err != nil {
				d.note(runlog.Event{What: runlog.FaultEnded, Kind: "remove folder of journals",
					Target: s.ID, Took: time.Since(began),
					Violation: fmt.Sprintf("%s has no journal %v after its folder was deleted", s.ID, limit)})
			}
			if !s.Running() {
				d.journalLost[id(s)] = true
			}
		}
		return nil
	}}, nil
}

// fillDisk fills the disk of all journals.
func fillDisk(_ context.Context, d *driver, r *rand.Rand) (*injury, error) {
	if err := d.disk.Fill(); err != nil {
		return nil, err
	}
	return &injury{target: "all", lasts: between(r, 500*time.Millisecond, 5*time.Second),
		end: func(context.Context) error {
			return d.disk.Free()
		}}, nil
}

// hangDisk makes the disk of all journals answer no write: nothing but leases may wait for it.
func hangDisk(_ context.Context, d *driver, r *rand.Rand) (*injury, error) {
	if err := d.disk.Freeze(); err != nil {
		return nil, err
	}
	return &injury{target: "all", lasts: between(r, 500*time.Millisecond, 8*time.Second),
		end: func(context.Context) error {
			return d.disk.Thaw()
		}}, nil
}

// limitJournal keeps an instance from writing to any file. It must lease nothing that it cannot
// remember, and go on with the IDs that it has.
func limitJournal(_ context.Context, d *driver, r *rand.Rand) (*injury, error) {
	s, err := d.instance(r)
	if err != nil {
		return nil, err
	}
	if err := s.LimitFiles(uint64(r.IntN(2_000))); err != nil {
		return nil, fmt.Errorf("%w: %w", errSkip, err)
	}
	return &injury{target: s.ID, lasts: between(r, 500*time.Millisecond, 4*time.Second),
		end: func(context.Context) error {
			if !s.Running() {
				return nil // it ended, and was started again
			}
			return s.LimitFiles(unlimited)
		}}, nil
}
