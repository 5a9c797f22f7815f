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
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
)

var head = Record{UUID: "u", Room: "a", Name: "one"}

func mustOpen(t *testing.T, path string) (*Journal, State) {
	t.Helper()
	j, s, err := open(t.Context(), &quick{}, path, head, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = j.Close() })
	return j, s
}

// quick is a disk that counts syncs and performs none: for tests with many.
type quick struct {
	osDisk
	syncs atomic.Int64
}

func (q *quick) Create(path string) (file, error) {
	f, err := q.osDisk.Create(path)
	return quickFile{f, q}, err
}

type quickFile struct {
	file
	disk *quick
}

func (f quickFile) Sync() error {
	f.disk.syncs.Add(1)
	return nil
}

// A record that was appended is there when the journal is opened again, whether the file was
// written anew in between or not.
func TestAppendAndOpen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x", "j")
	j, fresh := mustOpen(t, path)
	if fresh.UUID != "u" || len(fresh.Marks) != 0 {
		t.Errorf("fresh: %+v", fresh)
	}
	want := map[allocator.Tag]Mark{}
	for i := range 20_000 { // more than the slack
		tag := allocator.Tag(fmt.Sprint("tag-", i%50))
		want[tag] = Mark{tag, int64(i), 1}
		r := Record{Epochs: []string{"e1"}, Epoch: "e1", Revision: int64(i),
			Marks: []Mark{{tag, int64(i), 1}, {"low", 5, 2}, {"low", 3, 1}}}
		if i == 19_999 {
			r.Epochs, r.Epoch, r.Revision, r.MarginTotal, r.Unconfirmed = []string{"e2"}, "e2", 7, 3, true
			r.Seen, r.Rooms, r.Incarnations, r.Version = []record.SeenInstance{{Room: "a", Name: "two",
				Incarnation: "i2", Address: "host:1"}, {Room: "a", Name: "two", Incarnation: "i2", Address: "host:1",
				Left: 8}}, []allocator.Room{"a"}, []string{"i1"}, 9
		}
		if err := j.Append(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	want["low"] = Mark{"low", 5, 2}
	if info, err := os.Stat(path); err != nil || info.Size() > 2*slack {
		t.Errorf("the file: %+v, %v", info, err)
	}
	if _, _, err := Open(t.Context(), path, head, nil); allocator.KindOf(err) != allocator.Refused ||
		!strings.Contains(err.Error(), fmt.Sprintf("another process has it (PID %d on host ", os.Getpid())) ||
		!strings.Contains(err.Error(), fmt.Sprintf("`kill -9 %d`", os.Getpid())) {
		t.Errorf("opened twice: %v", err)
	}
	if err := errors.Join(j.Close(), j.Close()); err != nil {
		t.Error(err)
	}
	for range 2 {
		j, s := mustOpen(t, path)
		if diff := cmp.Diff(want, s.Marks); diff != "" {
			t.Error(diff)
		}
		if diff := cmp.Diff(Record{
			Format: Format, UUID: "u", Room: "a", Name: "one", Incarnations: []string{"i1"},
			Epochs: []string{"e1", "e2"}, Epoch: "e2", Revision: 7,
			Version: 9, Rooms: []allocator.Room{"a"}, Seen: []record.SeenInstance{{Room: "a", Name: "two",
				Incarnation: "i2", Address: "host:1", Left: 8}}, MarginTotal: 3, Unconfirmed: true,
		}, s.Record); diff != "" {
			t.Error(diff)
		}
		_ = j.Close()
	}
}

// A file that is not this instance's journal is refused with a reason, and is not changed.
func TestRefused(t *testing.T) {
	sealed := func(text string) string {
		return fmt.Sprintf("%08x %s\n", crc32.Checksum([]byte(text), castagnoli), text)
	}
	for content, says := range map[string]string{
		"x\n": "line 1: bad checksum: it is damaged; if it is moved away",
		"":    "it is empty: it is damaged",
		sealed(`{"format":1,"uuid":"u","room":"a","name":"one"}`) + sealed(
			`{"marks":[{"tag":"t","next":"5"}]}`): "written by another release of March; " +
			"this one reads format 2: move it away",
		sealed(`[{"format":3,"uuid":"u","newer":1}]`):               "written by another release of March",
		sealed(`[{"format":2,"uuid":"u","room":"a","name":"two"}]`): "of instance a/two of cluster u; this is a/one",
	} {
		path := filepath.Join(t.TempDir(), "j")
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		_, _, err := Open(t.Context(), path, head, nil)
		if allocator.KindOf(err) != allocator.Refused || !strings.Contains(err.Error(), says) ||
			!strings.Contains(err.Error(), path) {
			t.Errorf("%q: %v", content, err)
		}
		if now, err := os.ReadFile(path); err != nil || string(now) != content {
			t.Errorf("%q became %q, %v", content, now, err)
		}
	}
}

// Concurrent appends share syncs, and each record is on the disk when its Append returns.
func TestConcurrent(t *testing.T) {
	path := filepath.Join(t.TempDir(), "j")
	d := &quick{}
	j, _, err := open(t.Context(), d, path, head, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = j.Close() }()
	var work sync.WaitGroup
	for g := range 32 {
		work.Go(func() {
			for i := range 20 {
				tag := allocator.Tag(fmt.Sprintf("t%d-%d", g, i))
				if err := j.Append(t.Context(), Record{Marks: []Mark{{tag, 5, 1}}}); err != nil {
					t.Error(err)
				}
				if s, err := Read(path); i == 19 && (err != nil || s.Marks[tag].Next != 5) {
					t.Errorf("%s is not there: %v", tag, err)
				}
			}
		})
	}
	work.Wait()
	if s, err := Read(path); err != nil || len(s.Marks) != 640 {
		t.Errorf("%d marks, %v", len(s.Marks), err)
	}
	if syncs := d.syncs.Load(); syncs >= 600 {
		t.Errorf("%d syncs for 640 records: they do not share", syncs)
	}
}

// A journal of very many tags opens. Every list that grows is bounded.
func TestSize(t *testing.T) {
	const tags = 100_000
	path := filepath.Join(t.TempDir(), "j")
	j, _ := mustOpen(t, path)
	var r Record
	for i := range tags {
		r.Marks = append(r.Marks, Mark{allocator.Tag(fmt.Sprintf("a-tag-of-twenty-%d", i)), int64(i), 1})
	}
	if err := j.Append(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	for i := range 3 * most {
		n := fmt.Sprint(i)
		if err := j.Append(t.Context(), Record{Epochs: []string{n}, Incarnations: []string{n},
			Seen: []record.SeenInstance{{Room: "a", Name: allocator.Instance(n), Incarnation: n, Address: n}}}); err !=
			nil {
			t.Fatal(err)
		}
	}
	_ = j.Close()
	_, s := mustOpen(t, path)
	info, err := os.Stat(path)
	if err != nil || info.Size() > 80*tags || len(s.Marks) != tags { // Open has a limit of its own
		t.Errorf("%d bytes, %d marks, %v", info.Size(), len(s.Marks), err)
	}
	if len(s.Epochs) != most || len(s.Incarnations) != most || len(s.Seen) != most ||
		s.Epochs[most-1] != fmt.Sprint(3*most-1) {
		t.Errorf("%d epochs, %d incarnations, %d seen", len(s.Epochs), len(s.Incarnations), len(s.Seen))
	}
}

// Revisions belong to an epoch. A revision of an epoch that is over is ignored.
func TestRevisionsBelongToAnEpoch(t *testing.T) {
	var s State
	s.add(Record{Epochs: []string{"e1"}, Epoch: "e1", Revision: 900})
	s.add(Record{Epochs: []string{"e2"}})
	if s.Epoch != "e2" || s.Revision != 0 {
		t.Errorf("%+v", s)
	}
	s.add(Record{Epoch: "e1", Revision: 901})
	s.add(Record{Epoch: "e2", Revision: 6})
	s.add(Record{Marks: []Mark{{"t", 1, 1}}})
	if s.Revision != 6 {
		t.Errorf("%+v", s)
	}
}

// A journal that is cut off anywhere still has all lines before the cut. Every flipped bit
// outside the last line is refused.
func TestTornAndCorrupt(t *testing.T) {
	lines := [][]byte{}
	h := head
	h.Format = Format
	for _, r := range []Record{h, {Marks: []Mark{{"t", 5, 1}}}, {Marks: []Mark{{"t", 9, 1}}}} {
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
		case err != nil || n >= before && s.Marks["t"].Next != 5:
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
			case n >= before && (err != nil || s.Marks["t"].Next != 5 && s.Marks["t"].Next != 9):
				t.Errorf("bit %d of byte %d of the last line: %+v, %v", bit, n, s, err)
			}
		}
	}
}

// A record with a correct checksum was written on purpose. If this program does not know it,
// Parse refuses it rather than leave it out in silence.
func TestUnknownRecord(t *testing.T) {
	h := head
	h.Format = Format
	for _, text := range []string{`[{"newer":1}]`, `0`, `[]`, `[{}] [{}]`, `{}`} {
		line := fmt.Appendf(nil, "%08x %s\n", crc32.Checksum([]byte(text), castagnoli), text)
		s, err := Parse(append(encode(h), line...))
		if allocator.KindOf(err) != allocator.Refused ||
			!strings.Contains(err.Error(), "line 2: not a record of this program") {
			t.Errorf("%s: %+v, %v", text, s, err)
		}
	}
}

// FuzzParse feeds any bytes to Parse. It must not panic or accept a record with a bad checksum,
// and what it reads can be written and read again. If sealed is set, each line first gets its
// checksum: bytes that have one by chance are rare.
func FuzzParse(f *testing.F) {
	h := head
	h.Format = Format
	line := encode(Record{Epochs: []string{"e"}, Epoch: "e", Revision: 3, SeenUnder: "e",
		Seen:  []record.SeenInstance{{Room: "a", Name: "i", Incarnation: "p", Address: "h:1"}},
		Marks: []Mark{{"t", 9, 1}}})
	f.Add(encode(h), false)
	f.Add(append(encode(h), line...), false)
	f.Add(append(encode(h), "00000000 {}\n00000000 {}"...), false)
	f.Add(slices.Concat(encode(h)[9:], line[9:],
		[]byte("[{\"marks\":[{\"tag\":\"\",\"next\":\"-1\"}]},{}]\n[{}] [{}]\nnull\n")), true)
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
		for r := range s.records {
			again = append(again, encode(r)...)
		}
		back, err := Parse(again)
		if diff := cmp.Diff(s, back); err != nil || diff != "" {
			t.Errorf("%v %s", err, diff)
		}
		var want map[allocator.Tag]Mark // from the lines that are whole and have their checksum
		for line := range bytes.Lines(content) {
			sum, text, _ := bytes.Cut(line, []byte(" "))
			text, whole := bytes.CutSuffix(text, []byte("\n"))
			if !whole || string(sum) != fmt.Sprintf("%08x", crc32.Checksum(text, crc32.MakeTable(crc32.Castagnoli))) {
				continue
			}
			var records []Record
			if err := json.Unmarshal(text, &records); err != nil {
				t.Fatalf("%q was taken for records: %v", text, err)
			}
			for _, r := range records {
				for _, m := range r.Marks {
					if want == nil {
						want = make(map[allocator.Tag]Mark)
					}
					if m.Next >= want[m.Tag].Next {
						want[m.Tag] = m
					}
				}
			}
		}
		if diff := cmp.Diff(want, s.Marks); diff != "" {
			t.Errorf("other marks than the lines with good checksums have: %s", diff)
		}
	})
}

// The process that leased last is known from the order of the records, also after the file was
// written anew. A file that an older program wrote anew has the leases behind all processes: then
// the last process counts.
func TestLeaser(t *testing.T) {
	path := filepath.Join(t.TempDir(), "j")
	leaser := func(want string, more ...Record) {
		t.Helper()
		for range 2 { // opening writes the file anew
			j, s := mustOpen(t, path)
			if s.Leaser != want {
				t.Errorf("the leaser is %q of %v, want %q", s.Leaser, s.Incarnations, want)
			}
			if err := j.Close(); err != nil {
				t.Fatal(err)
			}
		}
		j, _ := mustOpen(t, path)
		for _, r := range more {
			if err := j.Append(t.Context(), r); err != nil {
				t.Fatal(err)
			}
		}
		if err := j.Close(); err != nil {
			t.Fatal(err)
		}
	}
	begins := func(name string) Record { return Record{Incarnations: []string{name}} }
	leaser("", begins("one"))
	leaser("", begins("two"), Record{Marks: []Mark{{"t", 5, 1}}})
	leaser("two", begins("three"), Record{Epochs: []string{"e"}, Epoch: "e"})
	leaser("two", begins("four"), begins("five"))
	leaser("two", Record{Windows: []Window{{Incarnation: "five", Until: 5}}})
	leaser("five", begins("six"))
	leaser("five")

	old := encode(Record{Format: Format, UUID: "u", Room: "a", Name: "one", Incarnations: []string{"one", "two"}})
	old = append(old, encode(Record{Marks: []Mark{{"t", 5, 1}}})...)
	if err := os.WriteFile(path, old, 0o600); err != nil {
		t.Fatal(err)
	}
	leaser("two")
	if s, err := Read(path); err != nil || !slices.Equal(s.Incarnations, []string{"one", "two"}) {
		t.Errorf("%+v, %v", s, err)
	}
	var many []string // more than a journal keeps
	for k := range most + 10 {
		many = append(many, fmt.Sprint("p", k))
	}
	leaser("two", Record{Incarnations: many})
	if s, err := Read(path); err != nil || len(s.Incarnations) != most || s.Incarnations[most-1] != many[len(many)-1] {
		t.Errorf("%d processes, %v", len(s.Incarnations), err)
	}
}
