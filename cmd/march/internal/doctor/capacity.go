package doctor

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/march-id/march/allocator"
)

// Capacity is how full a part of a cluster is, and when it will be full.
type Capacity struct {
	What  string  `json:"what"`
	Used  int64   `json:"used,string"`
	Of    int64   `json:"of,string"`
	Share float64 `json:"share"` // of Of, 0 to 1
	// Full is when it is full at the present rate; absent where that is unknown, or where
	// nothing is used now.
	Full *time.Time `json:"full,omitempty"`
	Note string     `json:"note,omitempty"`
}

// mostTags is how many tags Capacities lists.
const mostTags = 20

// etcdPerMark is how many bytes a tag takes in etcd for each room, at most: a mark with eight
// eras has some 700 bytes, and etcd keeps an older revision of it until it compacts.
const etcdPerMark = 2 << 10

// Capacities returns what can become full, in the order etcd, rooms, number of tags, workers,
// tags. Tags that are full first come first.
func Capacities(f Facts, now time.Time) []Capacity {
	rooms := int64(len(f.Overview.GetEver()))
	var list []Capacity
	if c, ok := f.etcdCapacity(rooms); ok {
		list = append(list, c)
	}
	list = append(list, capacity("rooms", rooms, allocator.MaxRooms, "that ever had a range"))
	if most := f.maxTags(); most > 0 && f.TagsRead {
		list = append(list, capacity("tags", f.TagsTotal, most, "the console's --max-tags"))
	}
	for _, s := range f.Slices {
		list = append(list, capacity(fmt.Sprintf("workers of %d bits in room %s", s.GetBits(), s.GetRoom()), s.GetLive(), s.GetUpper()-s.GetLower(), "with a window now"))
	}
	return append(list, f.tagCapacities(now)...)
}

func capacity(what string, used, of int64, note string) Capacity {
	c := Capacity{What: what, Used: used, Of: of, Note: note}
	if of > 0 {
		c.Share = min(float64(used)/float64(of), 1)
	}
	return c
}

// etcdCapacity returns how full etcd is, by the largest of its members.
func (f Facts) etcdCapacity(rooms int64) (c Capacity, ok bool) {
	for _, a := range f.answered() {
		e := a.Got.GetEtcd()
		if e.GetError() != "" || e.GetQuota() == 0 || ok && e.GetSize() <= c.Used {
			continue
		}
		c, ok = capacity("bytes in etcd", e.GetSize(), e.GetQuota(), ""), true
		c.Note = fmt.Sprintf("its keys are bounded: it has room for at least %d more tags", max(e.GetQuota()-e.GetSize(), 0)/(etcdPerMark*max(rooms, 1)))
	}
	return c, ok
}

// maxTags returns the console's --max-tags, or 0 if the console did not tell it.
func (f Facts) maxTags() int64 {
	for _, a := range f.answered() {
		for _, s := range a.Got.GetSettings() {
			if s.GetName() == "max-tags" {
				n, _ := strconv.ParseInt(s.GetValue(), 10, 64)
				return n
			}
		}
	}
	return 0
}

func (f Facts) tagCapacities(now time.Time) []Capacity {
	var list []Capacity
	for _, t := range f.Tags {
		tag := t.GetTag()
		c := Capacity{What: "IDs of tag " + tag.GetName(), Share: t.GetUsed()}
		if p := tag.GetTime(); p != nil {
			c.What, c.Of = "time of tag "+tag.GetName(), int64(1)<<p.GetTimeBits()
			c.Used, c.Note = int64(c.Share*float64(c.Of)), "in units of "+p.GetUnit().AsDuration().String()
		} else {
			next := tag.GetStart()
			for _, m := range t.GetMarks() {
				next = max(next, m.GetNext())
			}
			c.Used, c.Of = next-tag.GetStart(), tag.GetLimit()-tag.GetStart()
			c.Note = fmt.Sprintf("%.0f IDs a second", t.GetRate())
			if p := tag.GetPeriod(); p != nil { // Share is that of the period
				c.What += " in period " + p.GetCurrent()
				c.Of = min(tag.GetLimit(), p.GetEnd()) - max(tag.GetStart(), p.GetFirst())
				c.Used = int64(math.Round(c.Share * float64(c.Of)))
				c.Note += ", the next period begins at " + p.GetEnds().AsTime().Format(time.RFC3339)
			}
		}
		// A Duration, and so a time, reaches 290 years.
		if d := t.GetLasts(); d != nil && d.GetSeconds() < math.MaxInt64/int64(time.Second) {
			full := now.Add(d.AsDuration()).UTC().Truncate(time.Second)
			c.Full = &full
		}
		list = append(list, c)
	}
	slices.SortStableFunc(list, func(a, b Capacity) int {
		switch {
		case (a.Full == nil) != (b.Full == nil):
			return map[bool]int{true: 1, false: -1}[a.Full == nil]
		case a.Full != nil && !a.Full.Equal(*b.Full):
			return a.Full.Compare(*b.Full)
		}
		return cmp.Compare(b.Share, a.Share)
	})
	return list[:min(len(list), mostTags)]
}
