package report

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/cmd/chaos/internal/history"
	"github.com/march-id/march/cmd/chaos/internal/runlog"
)

// skews are, by instance and tag, what the instance said to be the least ID by the tag's max_skew, once it has leased.
type skews map[history.Owner][]skew

// skew is what an instance issues nothing below from a time on.
type skew struct {
	from  time.Time
	least int64
}

// readSkews reads the logs of all instances.
func readSkews(dir string) (skews, error) {
	files, err := filepath.Glob(filepath.Join(dir, "logs", "*.log"))
	if err != nil {
		return nil, err
	}
	all := make(skews)
	for _, path := range files {
		file, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		err = all.read(file)
		if err = errors.Join(err, file.Close()); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
	}
	return all, nil
}

// read reads a log. A process that stops may leave what is behind to the next one, which looks by itself.
func (s skews) read(log io.Reader) error {
	behind := make(map[history.Owner]int64)
	in := bufio.NewReaderSize(log, 1<<20)
	for {
		text, err := in.ReadBytes('\n')
		if errors.Is(err, io.EOF) { // without an end: a killed process left it
			return nil
		}
		if err != nil {
			return err
		}
		var l struct {
			said

			history.Owner

			First, Least int64
		}
		if json.Unmarshal(text, &l) != nil { // the last words of a runtime, or a line of etcd's
			continue
		}
		switch l.Message {
		case "stopped":
			clear(behind)
		case "tag is behind":
			behind[l.Owner] = l.Least
		case string(history.Leased):
			if least := behind[l.Owner]; least > 0 && l.First >= least {
				s[l.Owner] = append(s[l.Owner], skew{l.Time, least})
				delete(behind, l.Owner)
			}
		}
	}
}

// at returns the latest one before a call was sent.
func (s skews) at(owner history.Owner, sent time.Time) (last skew) {
	for _, one := range s[owner] {
		if sent.After(one.from.Add(leeway)) {
			last = one
		}
	}
	return last
}

// skew checks that an answer has no ID further behind than the instance said. After a restore marks are lower, and a
// lease that a layout overtook may be dropped as it comes.
func (p *pass) skew(owner history.Owner, i runlog.Answer) {
	last := p.skews.at(owner, i.Sent)
	if last.least == 0 || p.felt.meet(last.from, i.Received) ||
		slices.ContainsFunc(p.history.Layouts, func(l history.Layout) bool {
			return l.Time.Sub(last.from).Abs() < overtaken
		}) {
		return
	}
	p.r.Skewed++
	p.shows("behind " + string(i.Tag))
	if i.Runs[0].First < last.least {
		p.r.Behind.add(1, fmt.Sprintf("%v issued %d to a call of %s: it had leased at %s, and allowed nothing below %d",
			owner, i.Runs[0].First, i.Sent.Format(stamp), last.from.Format(stamp), last.least))
	}
}

// overtaken is how near to a lease a layout may have overtaken it.
const overtaken = 5 * time.Second

// plantSkews has each instance answer with an ID that is too far behind, which must be found.
func (p *pass) plantSkews() {
	found := p.r.Behind
	for owner, all := range p.skews {
		before := p.r.Skewed
		p.r.Behind = Finding{}
		sent := all[0].from.Add(leeway + 1)
		p.skew(owner, runlog.Answer{Sent: sent, Received: sent,
			Runs: []allocator.Run{{First: all[0].least - 1, Count: 1}}})
		if checked := p.r.Skewed; checked == before {
			continue // not this one
		}
		p.r.Skewed = before
		if p.r.Planted++; p.r.Behind.Count != 1 {
			p.r.Checker.add(1, fmt.Sprintf("the oracle of max_skew missed what was planted: %v", owner))
		}
	}
	p.r.Behind = found
}
