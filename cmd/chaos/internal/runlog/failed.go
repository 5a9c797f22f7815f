package runlog

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"
)

// Failed is calls that failed in one way within about a second.
type Failed struct {
	// From is when the first of them failed, To when the last did.
	From time.Time `json:"from"`
	To   time.Time `json:"to"`
	// Kind is the way: the name of an allocator.Kind if March returned one, or another word.
	Kind  string `json:"kind"`
	Count int64  `json:"count"`
	// Who and Error are those of the first failure.
	Who   string `json:"who"`
	Error string `json:"error"`
}

// FailedDir is the folder of the processes' failed calls in a run's directory.
const FailedDir = "failed"

const failedSuffix = ".jsonl"

// Failures records the failed calls of one process. Its methods are safe for concurrent use.
type Failures struct {
	mu struct {
		sync.Mutex
		file *os.File
		some map[string]Failed // not written yet, by kind
	}
}

// CreateFailures makes the file of a process, PROCESS.jsonl. It must not exist.
func CreateFailures(dir, process string) (*Failures, error) {
	path := filepath.Join(dir, FailedDir, process+failedSuffix)
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return nil, err
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o640)
	if err != nil {
		return nil, err
	}
	f := &Failures{}
	f.mu.file, f.mu.some = file, make(map[string]Failed)
	return f, nil
}

// Add notes a call that failed just now.
func (f *Failures) Add(kind, who string, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	one, ok := f.mu.some[kind]
	if !ok {
		one = Failed{From: now, Kind: kind, Who: who, Error: err.Error()}
	}
	one.To = now
	one.Count++
	f.mu.some[kind] = one
}

// Flush writes what was added. The process calls it about every second.
func (f *Failures) Flush() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	encoder := json.NewEncoder(f.mu.file)
	for _, kind := range slices.Sorted(maps.Keys(f.mu.some)) {
		if err := encoder.Encode(f.mu.some[kind]); err != nil {
			return err
		}
		delete(f.mu.some, kind)
	}
	return nil
}

// Close writes what was added and closes the file.
func (f *Failures) Close() error { return errors.Join(f.Flush(), f.mu.file.Close()) }

// ReadFailed reads the failed calls of the run in dir: none if no process recorded any. Torn
// last lines are left out.
func ReadFailed(dir string) ([]Failed, error) {
	paths, err := filepath.Glob(filepath.Join(dir, FailedDir, "*"+failedSuffix))
	if err != nil {
		return nil, err
	}
	var all []Failed
	for _, path := range paths {
		file, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		for decoder := json.NewDecoder(file); ; {
			var f Failed
			err = decoder.Decode(&f)
			if err != nil {
				break
			}
			all = append(all, f)
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			err = nil
		}
		if err = errors.Join(err, file.Close()); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
	}
	return all, nil
}
