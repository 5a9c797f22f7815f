package journal

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/march-id/march/allocator"
)

var head = Record{UUID: "u", Room: "a", Name: "one"}

func mustOpen(t *testing.T, path string) (*Journal, State) {
	t.Helper()
	j, s, err := Open(path, head)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = j.Close() })
	return j, s
}

// What was appended is there when the journal is opened again, whether it was
// written anew in between or not.
func TestAppendAndOpen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x", "j")
	j, fresh := mustOpen(t, path)
	if fresh.UUID != "u" || len(fresh.Marks) != 0 {
		t.Errorf("fresh: %+v", fresh)
	}
	want := map[string]int64{}
	for i := range 20_000 { // more than the slack
		tag := fmt.Sprint("tag-", i%50)
		want[tag] = int64(i)
		r := Record{Epochs: []string{"e1"}, Epoch: "e1", Revision: int64(i), Marks: []Mark{{tag, int64(i)}, {"low", 5}, {"low", 3}}}
		if i == 19_999 {
			r.Epochs, r.Epoch, r.Revision, r.Barred = []string{"e2"}, "e2", 7, "e1"
			r.Seen, r.Rooms, r.Incarnations, r.Version = []Seen{{"a", "two", "i2", "host:1"}}, []string{"a"}, []string{"i1"}, 9
		}
		if i%500 == 0 || i > 19_000 { // the disk is slow here
			if err := j.Append(r); err != nil {
				t.Fatal(err)
			}
		} else {
			j.mu.state.add(r)
		}
	}
	want["low"] = 5
	if info, err := os.Stat(path); err != nil || info.Size() > 2*slack {
		t.Errorf("the file: %+v, %v", info, err)
	}
	if _, _, err := Open(path, head); allocator.KindOf(err) != allocator.Refused || !strings.Contains(err.Error(), "another process has it") {
		t.Errorf("opened twice: %v", err)
	}
	if err := errors.Join(j.Close(), j.Close()); err != nil {
		t.Error(err)
	}
	if err := j.Append(Record{}); err == nil {
		t.Error("appended after Close")
	}
	for range 2 {
		j, s := mustOpen(t, path)
		if diff := cmp.Diff(want, s.Marks); diff != "" {
			t.Error(diff)
		}
		if diff := cmp.Diff(Record{
			Format: 1, UUID: "u", Room: "a", Name: "one", Incarnations: []string{"i1"}, Epochs: []string{"e1", "e2"}, Epoch: "e2", Revision: 7,
			Version: 9, Rooms: []string{"a"}, Seen: []Seen{{"a", "two", "i2", "host:1"}}, Barred: "e1",
		}, s.Record); diff != "" {
			t.Error(diff)
		}
		_ = j.Close()
	}
	other := head
	other.Name = "two"
	if _, _, err := Open(path, other); allocator.KindOf(err) != allocator.Refused || !strings.Contains(err.Error(), "of instance a/one of cluster u") {
		t.Errorf("opened by another: %v", err)
	}
}

// Many at once share syncs, and each is there when it was told so.
func TestConcurrent(t *testing.T) {
	path := filepath.Join(t.TempDir(), "j")
	j, _ := mustOpen(t, path)
	var work sync.WaitGroup
	for g := range 32 {
		work.Go(func() {
			for i := range 20 {
				tag := fmt.Sprintf("t%d-%d", g, i)
				if err := j.Append(Record{Marks: []Mark{{tag, 5}}}); err != nil {
					t.Error(err)
				}
				if s, err := Read(path); i == 19 && (err != nil || s.Marks[tag] != 5) {
					t.Errorf("%s is not there: %v", tag, err)
				}
			}
		})
	}
	work.Wait()
	if s, err := Read(path); err != nil || len(s.Marks) != 640 {
		t.Errorf("%d marks, %v", len(s.Marks), err)
	}
	content, err := os.ReadFile(path)
	if lines := bytes.Count(content, []byte("\n")); err != nil || lines >= 600 {
		t.Errorf("%d lines for 640 records: they do not share", lines)
	}
}

// Records of two epochs that share a line: no revision counts for the other one.
func TestRevisionsBelongToAnEpoch(t *testing.T) {
	var b batch
	b.add(Record{Epochs: []string{"e1"}, Epoch: "e1", Revision: 900})
	b.add(Record{Epochs: []string{"e2"}, Epoch: "e2", Revision: 5})
	var s State
	s.add(b.record)
	if s.Epoch != "e2" || s.Revision != 0 {
		t.Errorf("%+v", s)
	}
	s.add(Record{Epoch: "e1", Revision: 901})
	s.add(Record{Epoch: "e2", Revision: 6})
	s.add(Record{Marks: []Mark{{"t", 1}}})
	if s.Revision != 6 {
		t.Errorf("%+v", s)
	}
}

// Every way to cut a journal off leaves what was there before; every flipped bit
// but those of the last line is refused.
func TestTornAndCorrupt(t *testing.T) {
	lines := [][]byte{}
	h := head
	h.Format = Format
	for _, r := range []Record{h, {Marks: []Mark{{"t", 5}}}, {Marks: []Mark{{"t", 9}}}} {
		lines = append(lines, encode(r))
	}
	whole := bytes.Join(lines, nil)
	before := len(lines[0]) + len(lines[1])
	for n := range whole {
		s, err := Parse(whole[:n])
		switch {
		case n < len(lines[0]):
			if allocator.KindOf(err) != allocator.Refused {
				t.Errorf("the first %d bytes: %+v, %v", n, s, err)
			}
		case err != nil || n >= before && s.Marks["t"] != 5:
			t.Errorf("the first %d bytes: %+v, %v", n, s, err)
		}
	}
	for n := range whole {
		for bit := range 8 {
			flipped := bytes.Clone(whole)
			flipped[n] ^= 1 << bit
			s, err := Parse(flipped)
			switch {
			case n < before && allocator.KindOf(err) != allocator.Refused:
				t.Errorf("bit %d of byte %d: %+v, %v", bit, n, s, err)
			case n >= before && (err != nil || s.Marks["t"] != 5 && s.Marks["t"] != 9):
				t.Errorf("bit %d of byte %d of the last line: %+v, %v", bit, n, s, err)
			}
		}
	}
}

// full is a disk that is full for a while.
type full struct {
	file
	left *int
}

func (f full) Write(b []byte) (int, error) {
	if *f.left -= len(b); *f.left < 0 {
		n, _ := f.file.Write(b[:len(b)/2]) // half a line
		return n, errors.New("no space left on device")
	}
	return f.file.Write(b)
}

// A full disk: the error says so; what comes later does not follow half a line;
// and once there is space all is well, with all that was said meanwhile.
func TestDiskFull(t *testing.T) {
	path := filepath.Join(t.TempDir(), "j")
	j, _ := mustOpen(t, path)
	left, create := 1<<20, j.create
	j.create = func(path string) (file, error) {
		f, err := create(path)
		return full{f, &left}, err
	}
	j.mu.file = full{j.mu.file, &left}
	if err := j.Append(Record{Marks: []Mark{{"t", 1}}}); err != nil {
		t.Fatal(err)
	}
	left = 0
	for i := range 3 {
		err := j.Append(Record{Marks: []Mark{{"t", int64(2 + i)}}})
		if err == nil || allocator.KindOf(err) != allocator.Unavailable || !strings.Contains(err.Error(), "no space left") {
			t.Errorf("full: %v", err)
		}
		if err := j.Ready(); err == nil {
			t.Error("ready, though nothing can be written")
		}
		if s, err := Read(path); err != nil || s.Marks["t"] != 1 {
			t.Errorf("what is there: %+v, %v", s, err)
		}
	}
	left = 1 << 20
	if err := j.Ready(); err != nil {
		t.Error(err)
	}
	if err := j.Append(Record{Marks: []Mark{{"u", 1}}}); err != nil {
		t.Error(err)
	}
	if s, err := Read(path); err != nil || s.Marks["t"] != 4 || s.Marks["u"] != 1 {
		t.Errorf("afterwards: %+v, %v", s, err)
	}
}

// FuzzParse: any bytes: no panic, and no record with a bad checksum: what is
// read can be written and read again. Where sealed is set, each line is given its
// checksum first: bytes that come to have one by chance are rare.
func FuzzParse(f *testing.F) {
	h := head
	h.Format = Format
	record := encode(Record{Epochs: []string{"e"}, Epoch: "e", Revision: 3, SeenUnder: "e", Seen: []Seen{{"a", "i", "p", "h:1"}}, Marks: []Mark{{"t", 9}}})
	f.Add(encode(h), false)
	f.Add(append(encode(h), record...), false)
	f.Add(append(encode(h), "00000000 {}\n00000000 {}"...), false)
	f.Add(slices.Concat(encode(h)[9:], record[9:], []byte("{\"marks\":[{\"tag\":\"\",\"next\":\"-1\"}]}\n{} {}\nnull\n")), true)
	f.Fuzz(func(t *testing.T, content []byte, sealed bool) {
		if sealed {
			var all []byte
			for line := range bytes.Lines(content) {
				text, whole := bytes.CutSuffix(line, []byte("\n"))
				all = fmt.Appendf(all, "%08x %s", crc32.Checksum(text, castagnoli), text)
				if whole {
					all = append(all, '\n')
				}
			}
			content = all
		}
		s, err := Parse(content)
		if err != nil {
			if allocator.KindOf(err) != allocator.Refused {
				t.Errorf("%v", err)
			}
			return
		}
		var again []byte
		for _, r := range s.records() {
			again = append(again, encode(r)...)
		}
		back, err := Parse(again)
		if diff := cmp.Diff(s, back); err != nil || diff != "" {
			t.Errorf("%v %s", err, diff)
		}
		var want map[string]int64 // by lines that are whole and have their checksum
		for line := range bytes.Lines(content) {
			sum, text, _ := bytes.Cut(line, []byte(" "))
			text, whole := bytes.CutSuffix(text, []byte("\n"))
			if !whole || string(sum) != fmt.Sprintf("%08x", crc32.Checksum(text, crc32.MakeTable(crc32.Castagnoli))) {
				continue
			}
			var r Record
			if err := json.Unmarshal(text, &r); err != nil {
				t.Fatalf("%q was taken for a record: %v", text, err)
			}
			for _, m := range r.Marks {
				if want == nil {
					want = make(map[string]int64)
				}
				want[m.Tag] = max(want[m.Tag], m.Next)
			}
		}
		if diff := cmp.Diff(want, s.Marks); diff != "" {
			t.Errorf("other marks than the lines with good checksums have: %s", diff)
		}
	})
}
