package history

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/march-id/march/allocator"
)

// Outcome is the outcome of a request for a segment.
type Outcome string

// The outcomes, as package ledger logs them.
const (
	Leased  Outcome = "segment leased"
	Lost    Outcome = "segment lost"
	Refused Outcome = "lease refused"
)

// Owner is an instance's part of a tag.
type Owner struct {
	Room     allocator.Room
	Instance allocator.Instance
	Tag      allocator.Tag
}

func (o Owner) String() string { return fmt.Sprintf("%s/%s %s", o.Room, o.Instance, o.Tag) }

// Line is a line of an instance's log about a segment.
type Line struct {
	Owner
	Time     time.Time
	Outcome  Outcome
	Segment  allocator.Segment
	Epoch    string
	Revision int64         // of the mark, if it was leased
	Took     time.Duration // since the lease began
	Error    string        // why it was lost
}

// logged is a line as hclog writes it.
type logged struct {
	Message  string    `json:"@message"`
	Time     time.Time `json:"@timestamp"`
	Room     string    `json:"room"`
	Instance string    `json:"instance"`
	Tag      string    `json:"tag"`
	Epoch    string    `json:"epoch"`
	Version  int64     `json:"version"`
	Boundary int64     `json:"boundary"`
	Lower    int64     `json:"lower"`
	Upper    int64     `json:"upper"`
	First    int64     `json:"first"`
	Count    int64     `json:"count"`
	Took     int64     `json:"took_us"`
	Revision int64     `json:"revision"`
	Error    string    `json:"error"`
}

// ReadLeases reads the lines of all instances of a run, from the logs in its directory.
func ReadLeases(dir string) ([]Line, error) {
	files, err := filepath.Glob(filepath.Join(dir, "logs", "*.log"))
	if err != nil {
		return nil, err
	}
	var all []Line
	for _, path := range files {
		file, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		lines, err := parse(file)
		if err = errors.Join(err, file.Close()); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		all = append(all, lines...)
	}
	return all, nil
}

// parse reads a log. It leaves out lines that are not about a segment: other messages, and the
// lines that a runtime prints when it ends.
func parse(log io.Reader) ([]Line, error) {
	var lines []Line
	in := bufio.NewReaderSize(log, 1<<20)
	for number := 1; ; number++ {
		text, err := in.ReadBytes('\n')
		if errors.Is(err, io.EOF) { // without an end: a killed process left it
			return lines, nil
		}
		if err != nil {
			return nil, err
		}
		var l logged
		if json.Unmarshal(text, &struct {
			Message *string `json:"@message"`
		}{&l.Message}) != nil {
			continue
		}
		switch Outcome(l.Message) {
		case Leased, Lost, Refused:
		default:
			continue
		}
		if err := json.Unmarshal(text, &l); err != nil {
			return nil, fmt.Errorf("line %d: %w", number, err)
		}
		line, err := l.line()
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", number, err)
		}
		lines = append(lines, line)
	}
}

func (l logged) line() (Line, error) {
	room, err := allocator.ParseRoom(l.Room)
	instance, instanceErr := allocator.ParseInstance(l.Instance)
	tag, tagErr := allocator.ParseTag(l.Tag)
	line := Line{
		Owner: Owner{room, instance, tag}, Time: l.Time, Outcome: Outcome(l.Message),
		Epoch: l.Epoch, Revision: l.Revision,
		Took: time.Duration(l.Took) * time.Microsecond, Error: l.Error,
		Segment: allocator.Segment{
			Version: l.Version, Boundary: l.Boundary, Range: allocator.Range{Lower: l.Lower, Upper: l.Upper},
			First: l.First, Count: l.Count,
		},
	}
	return line, errors.Join(err, instanceErr, tagErr, line.Segment.Validate())
}
