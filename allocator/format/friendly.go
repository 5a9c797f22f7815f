package format

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/march-id/march/allocator/timeid"
)

// Widths of the parts of CosId's IDs of 80 bits (CosIdGenerator): time in Unix ms, worker,
// sequence. They are no int64.
const (
	wideTimeBits, wideWorkerBits, wideSequenceBits = 44, 20, 16

	wideBits   = "44/20/16 bits"
	widePreset = "cosid-string"
)

// checkWide checks the parts of such an ID.
func checkWide(p timeid.Parts) error {
	for _, f := range [...]struct {
		field string
		value int64
		bits  int
	}{{"time", p.Time, wideTimeBits}, {"worker", p.Worker, wideWorkerBits},
		{"sequence", p.Sequence, wideSequenceBits}} {
		if f.value < 0 || f.value >= 1<<f.bits {
			return &ValueError{f.field, strconv.FormatInt(f.value, 10),
				fmt.Sprintf("0 to %d (%d bits)", int64(1)<<f.bits-1, f.bits)}
		}
	}
	return nil
}

// friendly is CosId's readable form of time-ordered IDs (SnowflakeIdStateParser.java):
// yyyyMMddHHmmssSSS-worker-sequence, without SSS where the unit is a second. The time is
// local to a fixed offset. A zone with summer time would write two IDs an hour apart as
// one text.
type friendly struct {
	layout   timeid.Layout // not valid where wide
	wide     bool          // the layout of 80 bits
	offset   int           // of the zone, in seconds
	padded   bool          // worker and sequence have zeros in front
	most     int64         // the largest ID with a year of four digits
	workers  int           // digits of the largest worker
	sequence int           // digits of the largest sequence
}

// complete fills in what follows from the layout. It reports whether any ID has a text.
func (f *friendly) complete() bool {
	worker, sequence := int64(1)<<wideWorkerBits, int64(1)<<wideSequenceBits
	if !f.wide {
		worker, sequence = f.layout.Workers(), f.layout.PerTick()
		f.most = f.layout.Largest()
		room := timeid.LatestEpoch - int64(f.offset)*1000 - f.layout.Epoch // until the year 10000
		if room < 0 {
			return false
		}
		if tick := room / f.unit(); tick < int64(1)<<f.layout.TimeBits-1 {
			f.most = (tick+1)<<(f.layout.WorkerBits+f.layout.SequenceBits) - 1
		}
	}
	f.workers, f.sequence = radix10.length(uint64(worker-1)), radix10.length(uint64(sequence-1))
	return true
}

func (f *friendly) unit() int64 { return int64(f.layout.Unit / time.Millisecond) }

// timeDigits returns how many digits the time has.
func (f *friendly) timeDigits() int {
	if !f.wide && f.layout.Unit == time.Second {
		return len("yyyyMMddHHmmss")
	}
	return len("yyyyMMddHHmmssSSS")
}

// length returns how long the shortest and the longest text is.
func (f *friendly) length() (least, most int) {
	most = f.timeDigits() + 1 + f.workers + 1 + f.sequence
	if f.padded {
		return most, most
	}
	return f.timeDigits() + len("-0-0"), most
}

// append writes parts that were checked.
func (f *friendly) append(dst []byte, p timeid.Parts) []byte {
	t := time.UnixMilli(p.Time + int64(f.offset)*1000).UTC()
	years, months, days := t.Date()
	hour, minute, second := t.Clock()
	dst = radix10.pad(dst, uint64(years), 4)
	for _, n := range [...]int{int(months), days, hour, minute, second} {
		dst = radix10.pad(dst, uint64(n), 2)
	}
	if f.timeDigits() > len("yyyyMMddHHmmss") {
		dst = radix10.pad(dst, uint64(t.Nanosecond()/1e6), 3)
	}
	worker, sequence := f.numbers()
	dst = worker.append(append(dst, '-'), uint64(p.Worker))
	return sequence.append(append(dst, '-'), uint64(p.Sequence))
}

// numbers returns how worker and sequence are written.
func (f *friendly) numbers() (worker, sequence number) {
	if f.padded {
		return number{radix10, f.workers}, number{radix10, f.sequence}
	}
	return number{radix10, 0}, number{radix10, 0}
}

// parse reads text[from:to] as append writes it.
func (f *friendly) parse(text string, from, to int) (timeid.Parts, error) {
	var p timeid.Parts
	body := text[from:to]
	worker := strings.IndexByte(body, '-')
	sequence := strings.LastIndexByte(body, '-')
	if worker < 0 || worker == sequence || worker != f.timeDigits() {
		return p, refuse(text, from,
			"time-worker-sequence, the time in digits", "a time of %d digits is not there", f.timeDigits())
	}
	var n [6]int
	for i, at := 0, from; i < len(n); i++ {
		width := 2
		if i == 0 {
			width = 4
		}
		v, err := number{radix10, width}.parse(text, at, at+width)
		if err != nil {
			return p, err
		}
		n[i] = int(v)
		at += width
	}
	var ms uint64
	if end := from + len("yyyyMMddHHmmss"); end < from+worker {
		var err error
		if ms, err = (number{radix10, 3}).parse(text, end, end+3); err != nil {
			return p, err
		}
	}
	t := time.Date(n[0], time.Month(n[1]), n[2], n[3], n[4], n[5], int(ms)*int(time.Millisecond), time.UTC)
	if y, m, d := t.Date(); y != n[0] || int(m) != n[1] || d != n[2] || t.Hour() != n[3] ||
		t.Minute() != n[4] || t.Second() != n[5] {
		return p, refuse(text, from, "yyyyMMddHHmmss", "there is no such time")
	}
	w, s := f.numbers()
	first, err := w.parse(text, from+worker+1, from+sequence)
	if err != nil {
		return p, err
	}
	second, err := s.parse(text, from+sequence+1, to)
	if err != nil {
		return p, err
	}
	p = timeid.Parts{Time: t.UnixMilli() - int64(f.offset)*1000, Worker: int64(first), Sequence: int64(second)}
	if !f.wide && (p.Time-f.layout.Epoch)%f.unit() != 0 {
		return p, refuse(text, from, fmt.Sprintf("multiples of %v", f.layout.Unit), "the time lies between two ticks")
	}
	return p, nil
}

// sortable is CosId's string of an ID of 80 bits (RadixCosIdStateParser.java): time, worker
// and sequence, each of a fixed width, 8+4+3 characters of radix 62 or 9+4+4 of radix 36.
// It sorts as the ID where texts are compared byte by byte.
type sortable struct{ parts [3]number }

func newSortable(r radix) sortable {
	widths := [3]int{8, 4, 3}
	if r == radix36 {
		widths = [3]int{9, 4, 4}
	}
	var s sortable
	for i, width := range widths {
		s.parts[i] = number{r, width}
	}
	return s
}

func (s *sortable) length() int { return s.parts[0].width + s.parts[1].width + s.parts[2].width }

// append writes parts that were checked.
func (s *sortable) append(dst []byte, p timeid.Parts) []byte {
	dst = s.parts[0].append(dst, uint64(p.Time))
	dst = s.parts[1].append(dst, uint64(p.Worker))
	return s.parts[2].append(dst, uint64(p.Sequence))
}

// parse reads text[from:to] as append writes it.
func (s *sortable) parse(text string, from, to int) (p timeid.Parts, err error) {
	if to-from != s.length() {
		return p, refuse(text, from, fmt.Sprintf("exactly %d", s.length()), "%d characters", to-from)
	}
	for i, into := range [...]*int64{&p.Time, &p.Worker, &p.Sequence} {
		n, err := s.parts[i].parse(text, from, from+s.parts[i].width)
		if err != nil {
			return p, err
		}
		*into = int64(n)
		from += s.parts[i].width
	}
	return p, nil
}
