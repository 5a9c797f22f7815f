// Package runlog is the event log of a run, so that the run can be checked at its end and at any
// time later. It has all that the checker reads besides the processes' own logs: what every caller asked and
// what came back (Answer), the faults and other events of the cluster (Event), and etcd's history (package
// history). A line is JSON. Each writer has a file of its own in the folder Dir of the run's directory, so that no
// writer waits for another one; the times of the lines put them together.
//
// A caller is sequential: it asks, takes the answer, records it, asks again. So the order of
// the lines in its file is the order of the calls. Each line is one write, before the caller
// asks again: a process that was killed leaves at most a torn line at the end, and Reader stops
// before it.
package runlog

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
)

// Dir is the folder of the log in a run's directory. Faults and EtcdsHistory are its files of events and of
// etcd's history, and callers begins the names of the others.
const (
	Dir          = "log"
	Faults       = "faults.jsonl"
	EtcdsHistory = "etcd.jsonl"
	callers      = "caller-"
)

// Writer writes a file of the log. Its methods are safe for concurrent use.
type Writer struct {
	mu   sync.Mutex
	file *os.File
	err  error
}

// Create makes the file of a caller in the run's directory. It must not exist.
func Create(dir, caller string) (*Writer, error) { return create(dir, callers+caller+".jsonl") }

func create(dir, name string) (*Writer, error) {
	path := filepath.Join(dir, Dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return nil, err
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o640)
	if err != nil {
		return nil, err
	}
	return &Writer{file: file}, nil
}

// Append opens a file whose lines were read up to an offset, and cuts off the rest.
func Append(path string, offset int64) (*Writer, error) {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o640)
	if err != nil {
		return nil, err
	}
	err = file.Truncate(offset)
	if err == nil {
		_, err = file.Seek(offset, io.SeekStart)
	}
	if err == nil && offset > 0 {
		_, err = file.WriteString("\n") // the end of the last line
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return &Writer{file: file}, nil
}

// Add writes a line. Close returns its error, too.
func (w *Writer) Add(line any) error {
	text, err := json.Marshal(line)
	w.mu.Lock()
	defer w.mu.Unlock()
	if err == nil {
		_, err = w.file.Write(append(text, '\n'))
	}
	w.err = errors.Join(w.err, err)
	return err
}

// Close closes the file.
func (w *Writer) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return errors.Join(w.err, w.file.Close())
}

// Reader reads a file of the log, which has lines of one type.
type Reader[T any] struct {
	decoder *json.Decoder
	file    *os.File
	lines   int
}

// Open opens a file.
func Open[T any](path string) (*Reader[T], error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	r := &Reader[T]{decoder: json.NewDecoder(bufio.NewReaderSize(file, 1<<16)), file: file}
	r.decoder.DisallowUnknownFields()
	return r, nil
}

// Callers returns the paths of all callers' files of the run in dir.
func Callers(dir string) ([]string, error) {
	return filepath.Glob(filepath.Join(dir, Dir, callers+"*"))
}

// Way returns the caller's way of calling, which is the last word of its file's name.
func Way(path string) string {
	words := strings.Split(strings.TrimSuffix(filepath.Base(path), ".jsonl"), "-")
	return words[len(words)-1]
}

// Close closes the file.
func (r *Reader[T]) Close() error { return r.file.Close() }

// Offset returns where the last line ends.
func (r *Reader[T]) Offset() int64 { return r.decoder.InputOffset() }

// Next returns the next line. Its error is io.EOF at the end, also before a torn line there, and another
// one for what is no line.
func (r *Reader[T]) Next() (line T, err error) {
	r.lines++
	err = r.decoder.Decode(&line)
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF):
		err = io.EOF
	case err != nil && !errors.Is(err, io.EOF):
		err = fmt.Errorf("%s: line %d: %w", r.file.Name(), r.lines, err)
	}
	return line, err
}

// Read calls use with all lines of a file, and returns where the last one ends.
func Read[T any](path string, use func(T) error) (offset int64, err error) {
	r, err := Open[T](path)
	if err != nil {
		return 0, err
	}
	defer func() { _ = r.Close() }()
	for {
		line, err := r.Next()
		if errors.Is(err, io.EOF) {
			return offset, nil
		}
		if err != nil {
			return offset, err
		}
		if err := use(line); err != nil {
			return offset, fmt.Errorf("%s: line %d: %w", path, r.lines, err)
		}
		offset = r.Offset()
	}
}
