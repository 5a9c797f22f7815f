// Package runlog keeps the record of a chaos run, so that the run can be checked at its
// end and at any time later: what every caller asked and what came back (Writer, Reader), the
// faults and other events of the cluster (Event), and the run's own parameters (Run). The
// record is files in the run's directory.
//
// A caller is sequential: it asks, takes the answer, records it, asks again. So the order of
// the records in its file is the order of the calls. Each record is one write, before the caller
// asks again: a process that was killed leaves at most a torn record at the end, and Reader stops
// before it.
package runlog

import (
	"bufio"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/march-id/march/allocator"
)

// Answer is the IDs that a caller got in one answer, or in several of a stream; or how a call failed.
type Answer struct {
	// Sent is when the first of them was requested, Received when the last came.
	Sent, Received time.Time
	Room           allocator.Room
	// Instance is empty for IDs of api/client, from segments leased from any instance of the room: these IDs
	// need not grow. The others that one caller gets of one instance only grow, per tag.
	Instance allocator.Instance
	Tag      allocator.Tag
	// Runs are in the order in which the IDs came.
	Runs []allocator.Run
	// Failed is the way in which the call failed, empty if it did not: the name of an allocator.Kind if
	// March returned one, or another word. Error is its text.
	Failed, Error string
}

// Who names the callers of one tag at an instance; if instance is empty, the Go client's at the
// room.
func Who(room allocator.Room, instance allocator.Instance, tag allocator.Tag) string {
	if instance == "" {
		instance = "client"
	}
	return fmt.Sprintf("%s/%s %s", room, instance, tag)
}

// Who names the caller.
func (a Answer) Who() string { return Who(a.Room, a.Instance, a.Tag) }

// Dir is the folder of the callers' files in a run's directory.
const Dir = "answers"

// Writer writes the file of one caller. It is for one goroutine.
type Writer struct {
	*gob.Encoder
	file *os.File
}

// Create makes a caller's file in the run's directory. It must not exist.
func Create(dir, caller string) (*Writer, error) {
	path := filepath.Join(dir, Dir, caller)
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return nil, err
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o640)
	if err != nil {
		return nil, err
	}
	return &Writer{gob.NewEncoder(file), file}, nil
}

// Add writes a record.
func (w *Writer) Add(a Answer) error { return w.Encode(a) }

// Close closes the file.
func (w *Writer) Close() error { return w.file.Close() }

// Reader reads the file of one caller.
type Reader struct {
	decoder *gob.Decoder
	file    *os.File
}

// Open opens a caller's file.
func Open(path string) (*Reader, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	return &Reader{gob.NewDecoder(bufio.NewReaderSize(file, 1<<16)), file}, nil
}

// Close closes the file.
func (r *Reader) Close() error { return r.file.Close() }

// Next returns the next record; the caller may keep its Runs. Its error is io.EOF at the end, also
// before a torn record there, and another one for what is no record.
func (r *Reader) Next() (a Answer, err error) {
	err = r.decoder.Decode(&a)
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF):
		err = io.EOF
	case err != nil && !errors.Is(err, io.EOF):
		err = fmt.Errorf("%s: %w", r.file.Name(), err)
	}
	return a, err
}
