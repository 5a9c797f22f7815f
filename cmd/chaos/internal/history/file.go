package history

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/march-id/march/allocator/ledger/store"
)

// fileName is the file of a history in its directory.
const fileName = "history.log"

// The kinds of lines of the file.
const (
	whatLife    = "life"    // a new life of etcd begins, with the snapshot of all keys that the line has
	whatGap     = "gap"     // changes were missed; the line has a snapshot of all keys after them
	whatChanges = "changes" // keys that changed, in order
	whatChecked = "checked" // the changes recorded so far belong to this life
)

// line is a line of the file: its kind, and the keys that etcd showed.
type line struct {
	Time      time.Time `json:"time"`
	What      string    `json:"what"`
	Why       string    `json:"why,omitempty"` // the reason for a life or a gap
	ClusterID uint64    `json:"cluster_id,string,omitempty"`
	Revision  int64     `json:"revision,string,omitempty"` // of the snapshot; of a check, up to which all is recorded
	Shown     int64     `json:"shown,string,omitempty"`    // of a check: etcd's revision then
	Index     uint64    `json:"raft_index,string,omitempty"`
	KVs       []kv      `json:"kvs,omitempty"`
}

// kv is a key as etcd showed it.
type kv struct {
	Key      string `json:"key"`
	Value    string `json:"value,omitempty"`
	Revision int64  `json:"revision,string"` // 0 if it was deleted
}

func (k kv) ledger() store.KV {
	return store.KV{Key: k.Key, Value: []byte(k.Value), ModRevision: k.Revision}
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// encode returns a line: its checksum, a space, JSON.
func (l line) encode() ([]byte, error) {
	text, err := json.Marshal(l)
	if err != nil {
		return nil, err
	}
	return fmt.Appendf(nil, "%08x %s\n", crc32.Checksum(text, castagnoli), text), nil
}

func decode(text []byte) (line, error) {
	var l line
	sum, text, ok := bytes.Cut(text, []byte(" "))
	if !ok || string(sum) != fmt.Sprintf("%08x", crc32.Checksum(text, castagnoli)) {
		return l, errors.New("bad checksum")
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&l); err != nil {
		return l, err
	}
	switch l.What {
	case whatLife, whatGap, whatChanges, whatChecked:
		return l, nil
	}
	return l, fmt.Errorf("%q; allowed: life, gap, changes, checked", l.What)
}

// read calls use with every line of the history in dir. A last line without an end was written
// by a recorder that was killed; whole is the size without it.
func read(dir string, use func(line) error) (whole int64, err error) {
	file, err := os.Open(filepath.Join(dir, fileName))
	if err != nil {
		return 0, err
	}
	defer func() { _ = file.Close() }()
	in := bufio.NewReaderSize(file, 1<<20)
	for number := 1; ; number++ {
		text, err := in.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return whole, nil
		}
		if err != nil {
			return whole, err
		}
		l, err := decode(bytes.TrimSuffix(text, []byte("\n")))
		if err == nil && number == 1 && l.What != whatLife {
			err = fmt.Errorf("a history begins with a life, not with %s", l.What)
		}
		if err == nil {
			err = use(l)
		}
		if err != nil {
			return whole, fmt.Errorf("%s: line %d: %w", file.Name(), number, err)
		}
		whole += int64(len(text))
	}
}

// log is a history that is being written.
type log struct {
	file *os.File
	keys map[string]kv // the present keys
	seen int64         // the highest recorded revision
	live bool          // a life has begun,
	id   uint64        // in this etcd cluster,
	// which has shown these at least, though the changes may not be recorded yet
	shown int64
	index uint64
}

// openLog opens the history in dir, or makes one.
func openLog(dir string) (*log, error) {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return nil, err
	}
	l := &log{keys: make(map[string]kv)}
	whole, err := read(dir, func(line line) error {
		l.take(line)
		return nil
	})
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	if l.file, err = os.OpenFile(filepath.Join(dir, fileName), os.O_WRONLY|os.O_CREATE, 0o640); err != nil {
		return nil, err
	}
	if err = l.file.Truncate(whole); err == nil {
		_, err = l.file.Seek(whole, io.SeekStart)
	}
	if err != nil {
		return nil, errors.Join(err, l.file.Close())
	}
	return l, nil
}

// take stores the content of a line.
func (l *log) take(line line) {
	switch line.What {
	case whatLife:
		l.live, l.id, l.shown, l.index = true, line.ClusterID, 0, 0
		fallthrough
	case whatGap:
		l.keys, l.seen = make(map[string]kv, len(line.KVs)), line.Revision
	}
	l.shown, l.index = max(l.shown, line.Revision, line.Shown), max(l.index, line.Index)
	l.seen = max(l.seen, line.Revision)
	for _, kv := range line.KVs {
		if kv.Revision == 0 {
			delete(l.keys, kv.Key)
			continue
		}
		l.keys[kv.Key] = kv
		l.seen = max(l.seen, kv.Revision)
	}
}

// add appends a line.
func (l *log) add(line line) error {
	line.Time = time.Now()
	text, err := line.encode()
	if err != nil {
		return err
	}
	if _, err := l.file.Write(text); err != nil {
		return err
	}
	l.take(line)
	return nil
}
