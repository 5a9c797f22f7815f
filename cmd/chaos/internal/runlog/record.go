// Package runlog keeps the record of a chaos run, so that the run can be checked at its
// end and at any time later: the IDs that every caller was given (Writer, Reader), the
// calls that failed (Failed), the faults and other events of the cluster (Event), and the
// run's own parameters (Run). The record is files in the run's directory.
//
// # The file of a caller
//
// A caller is sequential: it asks, takes the answer, records it, asks again. So the order of
// the records in its file is the order of the calls. A file begins with magic and a line of
// JSON, the Header. Then come records: the length of the body as a uvarint, the body's CRC-32C
// in four bytes, the body. A name is written once, and after that only its number. A process
// that was killed leaves at most a torn record at the end; Reader stops before it.
package runlog

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/march-id/march/allocator"
)

// Kind is the way in which IDs came to a caller.
type Kind uint8

const (
	// Batch and Stream are IDService's calls. The IDs that one caller gets of one instance by
	// them only grow, per tag.
	Batch Kind = iota + 1
	Stream
	// Client is IDs of api/client, from segments leased from any instance of the room: Instance
	// is empty, and the IDs need not grow.
	Client
)

// String returns the kind's name.
func (k Kind) String() string {
	switch k {
	case Batch:
		return "batch"
	case Stream:
		return "stream"
	case Client:
		return "client"
	}
	return fmt.Sprintf("kind %d", uint8(k))
}

// Issued is the IDs that a caller got in one answer, or in several of a stream.
type Issued struct {
	// Sent is when the first of them was requested, Received when the last came.
	Sent, Received time.Time
	Room           allocator.Room
	Instance       allocator.Instance
	Tag            allocator.Tag
	Kind           Kind
	// Runs are in the order in which the IDs came.
	Runs []allocator.Run
}

// Header identifies the caller of a file.
type Header struct {
	Process string `json:"process"`
	Worker  string `json:"worker"`
}

// Dir is the folder of the callers' files in a run's directory, and Suffix the end of their
// names.
const (
	Dir    = "issued"
	Suffix = ".rec"
)

const (
	magic     = "march issued 1\n"
	maxBody   = 1 << 20
	maxString = 128
	maxRuns   = 100_000
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Writer writes the file of one caller. It is for one goroutine.
type Writer struct {
	file    *os.File
	buf     *bufio.Writer
	body    []byte
	names   map[string]uint64
	flushed time.Time
}

// flushEvery bounds the lost records of a killed process.
const flushEvery = 200 * time.Millisecond

// Create makes a caller's file, Process-Worker.rec in the run's directory. It must not exist.
func Create(dir string, h Header) (*Writer, error) {
	path := filepath.Join(dir, Dir, h.Process+"-"+h.Worker+Suffix)
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return nil, err
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o640)
	if err != nil {
		return nil, err
	}
	w := &Writer{file: file, buf: bufio.NewWriter(file), names: make(map[string]uint64)}
	line, err := json.Marshal(h)
	if err == nil {
		_, err = w.buf.WriteString(magic + string(line) + "\n")
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return w, nil
}

// Add writes a record.
func (w *Writer) Add(i Issued) error {
	b := w.body[:0]
	b = append(b, byte(i.Kind))
	b = binary.AppendVarint(b, i.Sent.UnixNano())
	b = binary.AppendVarint(b, int64(i.Received.Sub(i.Sent)))
	for _, name := range []string{string(i.Room), string(i.Instance), string(i.Tag)} {
		n, known := w.names[name]
		if !known {
			n = uint64(len(w.names))
			w.names[name] = n
		}
		b = binary.AppendUvarint(b, n)
		if !known {
			b = binary.AppendUvarint(b, uint64(len(name)))
			b = append(b, name...)
		}
	}
	b = binary.AppendUvarint(b, uint64(len(i.Runs)))
	end := int64(0) // of the run before: most runs begin near it
	for _, run := range i.Runs {
		b = binary.AppendVarint(b, run.First-end)
		b = binary.AppendVarint(b, run.Count)
		end = run.First + run.Count
	}
	w.body = b
	if len(b) > maxBody {
		return fmt.Errorf("a record of %d bytes; allowed: %d", len(b), maxBody)
	}
	head := binary.AppendUvarint(nil, uint64(len(b)))
	head = binary.LittleEndian.AppendUint32(head, crc32.Checksum(b, castagnoli))
	if _, err := w.buf.Write(head); err != nil {
		return err
	}
	if _, err := w.buf.Write(b); err != nil {
		return err
	}
	if now := time.Now(); now.Sub(w.flushed) > flushEvery {
		w.flushed = now
		return w.buf.Flush()
	}
	return nil
}

// Close writes what is left and closes the file.
func (w *Writer) Close() error { return errors.Join(w.buf.Flush(), w.file.Close()) }

// Reader reads the file of one caller.
type Reader struct {
	Header Header
	file   *os.File
	buf    *bufio.Reader
	body   []byte
	names  []string
}

// Open opens a caller's file.
func Open(path string) (*Reader, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	r := &Reader{file: file, buf: bufio.NewReaderSize(file, 1<<16)}
	if err := r.header(); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", path, err), file.Close())
	}
	return r, nil
}

func (r *Reader) header() error {
	first, err := r.buf.ReadString('\n')
	if err != nil || first != magic {
		return fmt.Errorf("does not begin with %q", magic)
	}
	line, err := r.buf.ReadSlice('\n')
	if err != nil {
		return fmt.Errorf("no header: %w", err)
	}
	return json.Unmarshal(line, &r.Header)
}

// Close closes the file.
func (r *Reader) Close() error { return r.file.Close() }

// ErrBad is the error of a record that is complete and wrong.
var ErrBad = errors.New("not a record")

// Next returns the next record; the caller may keep its Runs. Its errors are io.EOF, also
// before a torn record at the end, and ErrBad.
func (r *Reader) Next() (Issued, error) {
	n, err := binary.ReadUvarint(r.buf)
	if err != nil {
		return Issued{}, atEnd(err)
	}
	if n > maxBody {
		return Issued{}, fmt.Errorf("%w: %d bytes; allowed: %d", ErrBad, n, maxBody)
	}
	if uint64(cap(r.body)) < n+4 {
		r.body = make([]byte, n+4)
	}
	b := r.body[:n+4]
	if _, err := io.ReadFull(r.buf, b); err != nil {
		return Issued{}, atEnd(err)
	}
	if got, want := crc32.Checksum(b[4:], castagnoli), binary.LittleEndian.Uint32(b); got != want {
		return Issued{}, fmt.Errorf("%w: its checksum is %08x, not %08x", ErrBad, got, want)
	}
	return r.decode(b[4:])
}

// atEnd makes a torn record the end.
func atEnd(err error) error {
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return io.EOF
	}
	return err
}

func (r *Reader) decode(b []byte) (i Issued, err error) {
	d := decoder{b: b}
	i.Kind = Kind(d.byte())
	i.Sent = time.Unix(0, d.varint())
	i.Received = i.Sent.Add(time.Duration(d.varint()))
	i.Room = allocator.Room(d.name(r))
	i.Instance = allocator.Instance(d.name(r))
	i.Tag = allocator.Tag(d.name(r))
	runs := d.uvarint()
	if runs > maxRuns {
		return i, fmt.Errorf("%w: %d runs; allowed: %d", ErrBad, runs, maxRuns)
	}
	i.Runs = make([]allocator.Run, 0, runs)
	end := int64(0)
	for range runs {
		run := allocator.Run{First: end + d.varint(), Count: d.varint()}
		end = run.First + run.Count
		i.Runs = append(i.Runs, run)
	}
	if d.failed || len(d.b) != 0 || i.Kind < Batch || i.Kind > Client {
		return i, fmt.Errorf("%w: its parts do not fit", ErrBad)
	}
	return i, nil
}

// decoder reads the parts of a body; failed says that it was too short.
type decoder struct {
	b      []byte
	failed bool
}

func (d *decoder) byte() byte {
	if len(d.b) == 0 {
		d.failed = true
		return 0
	}
	v := d.b[0]
	d.b = d.b[1:]
	return v
}

func (d *decoder) take(n int) bool {
	if n <= 0 {
		d.failed = true
		return false
	}
	d.b = d.b[n:]
	return true
}

func (d *decoder) varint() int64 {
	v, n := binary.Varint(d.b)
	if !d.take(n) {
		return 0
	}
	return v
}

func (d *decoder) uvarint() uint64 {
	v, n := binary.Uvarint(d.b)
	if !d.take(n) {
		return 0
	}
	return v
}

func (d *decoder) name(r *Reader) string {
	at := d.uvarint()
	switch {
	case d.failed:
	case at < uint64(len(r.names)):
		return r.names[at]
	case at == uint64(len(r.names)):
		n := d.uvarint()
		if d.failed || n > maxString || n > uint64(len(d.b)) {
			d.failed = true
			return ""
		}
		name := string(d.b[:n])
		d.b = d.b[n:]
		r.names = append(r.names, name)
		return name
	default:
		d.failed = true
	}
	return ""
}
