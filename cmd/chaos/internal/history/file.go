package history

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/cmd/chaos/internal/runlog"
)

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

// read calls use with every line of the history in dir, and returns where the last one ends.
func read(dir string, use func(line) error) (end int64, err error) {
	first := true
	return runlog.Read(filepath.Join(dir, runlog.EtcdsHistory), func(l line) error {
		switch l.What {
		case whatLife, whatGap, whatChanges, whatChecked:
		default:
			return fmt.Errorf("%q; allowed: life, gap, changes, checked", l.What)
		}
		if first && l.What != whatLife {
			return fmt.Errorf("a history begins with a life, not with %s", l.What)
		}
		first = false
		return use(l)
	})
}

// log is a history that is being written.
type log struct {
	file *runlog.Writer
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
	end, err := read(dir, func(line line) error {
		l.take(line)
		return nil
	})
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	l.file, err = runlog.Append(filepath.Join(dir, runlog.EtcdsHistory), end)
	return l, err
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
	if err := l.file.Add(line); err != nil {
		return err
	}
	l.take(line)
	return nil
}
