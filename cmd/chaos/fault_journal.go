package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"time"
)

// journalFaults hurt what instances remember.
func journalFaults() []fault {
	return []fault{
		{"remove journal", "an instance is killed, and started again without its journal", removeJournal},
		{"limit files of room", "an instance cannot write its journal any longer", limitJournal},
	}
}

func removeJournal(_ context.Context, d *driver, r *rand.Rand) (*injury, error) {
	s, err := d.instance(r)
	if err != nil {
		return nil, err
	}
	if err := s.Down(killSignal); err != nil {
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

// limitJournal keeps an instance from writing to any file: it must lease nothing
// that it cannot remember, and go on with what it holds.
func limitJournal(_ context.Context, d *driver, r *rand.Rand) (*injury, error) {
	s, err := d.instance(r)
	if err != nil {
		return nil, err
	}
	if err := s.LimitFiles(uint64(r.IntN(2_000))); err != nil {
		return nil, fmt.Errorf("%w: %w", errSkip, err)
	}
	return &injury{target: s.ID, lasts: between(r, 500*time.Millisecond, 4*time.Second), end: func(context.Context) error {
		if !s.Running() {
			return nil // it did not take it well, and was started again
		}
		return s.LimitFiles(unlimited)
	}}, nil
}
