package console

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/admin"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/operator"
	"github.com/march-id/march/internal/words"
)

func (s *problems) GetCapacity(ctx context.Context,
	_ *marchv1.GetCapacityRequest) (*marchv1.GetCapacityResponse, error) {
	o, err := s.GetOverview(ctx, &marchv1.GetOverviewRequest{})
	if err != nil {
		return nil, err
	}
	now := s.last.Load()
	size := now.etcd.StoreSize
	if now.away.IsZero() {
		if read, err := s.admin.StoreSize(ctx); err == nil {
			size = read
		}
	}
	f := capacityFacts{Rooms: o.GetRooms(), Ever: int64(len(o.GetEver())), EtcdSize: size.Bytes,
		Quota: size.Quota, MaxTags: s.admin.MaxTags(), AsOf: o.GetAsOf().AsTime(), Trends: now.trends}
	for _, c := range s.cfg.Diagnose.Certificates() {
		f.Certificates = append(f.Certificates, processCertificate{Process: "the console", CertificateStatus: c})
	}
	for id, answered := range s.answered(ctx, 0).answers.instances { // those of the overview
		for _, c := range answered.status.GetCertificates() {
			f.Certificates = append(f.Certificates, processCertificate{Process: string(id), CertificateStatus: c})
		}
	}
	slices.SortFunc(f.Certificates, func(a, b processCertificate) int {
		return cmp.Or(cmp.Compare(a.Process, b.Process), cmp.Compare(a.GetSetting(), b.GetSetting()))
	})
	answer := &marchv1.GetCapacityResponse{}
	// While etcd does not answer, the list has only the entries that need no etcd. The reserves,
	// which matter most then, are among them.
	if now.away.IsZero() && o.GetLayout() != nil {
		if f.Slices, err = s.slicesIn(ctx, "", admin.AllWidths); err == nil {
			var found *marchv1.SearchTagsResponse
			f.Tags, found, err = operator.ScarceTags(func(r *marchv1.SearchTagsRequest) (*marchv1.SearchTagsResponse,
				error) {
				return s.index.SearchTags(ctx, r)
			})
			f.TagsTotal, answer.TagsAsOf, f.TagsRead = found.GetTotal(), found.GetAsOf(), found.GetAsOf() != nil
		}
	}
	if err != nil && allocator.KindOf(err) != allocator.Unavailable {
		return nil, err
	}
	answer.Capacity = f.list(time.Now())
	return answer, nil
}

// capacityFacts are what a console knows of its cluster.
type capacityFacts struct {
	Rooms           []*marchv1.RoomStatus
	Ever            int64 // how many rooms ever had a range
	EtcdSize, Quota int64 // bytes; Quota is 0 where etcd does not say
	Tags            []*marchv1.TagSummary
	TagsTotal       int64 // how many tags there are
	TagsRead        bool  // TagsTotal is known
	MaxTags         int64
	Slices          []*marchv1.WorkerSlice
	Certificates    []processCertificate
	AsOf            time.Time // when the rooms were asked
	Trends          trends    // how etcd, tags and workers grow
}

// processCertificate is a certificate of a process: an instance, ROOM/NAME, or the console.
type processCertificate struct {
	Process string
	*marchv1.CertificateStatus
}

// etcdPerMark is how many bytes a tag takes in etcd for each room, at most: a mark with eight
// eras has some 700 bytes, and etcd keeps an older revision of it until it compacts.
const etcdPerMark = 2 << 10

// horizon is how far ahead a date is told.
const horizon = 100 * 365 * 24 * time.Hour

// list returns what can run out: what does at its present rate, the soonest first, and then
// the others, the fullest first.
func (f capacityFacts) list(now time.Time) []*marchv1.Capacity {
	list := slices.Concat(f.reserves(), f.certificates(), f.tags(now))
	if f.Quota > 0 {
		c := capacityOf(etcdKind, etcdBytes, f.EtcdSize, f.Quota)
		c.Note = fmt.Sprintf("its keys are bounded: it has room for at least %d more tags",
			max(f.Quota-f.EtcdSize, 0)/(etcdPerMark*max(f.Ever, 1)))
		f.grow(c, now)
		list = append(list, c)
	}
	c := capacityOf(marchv1.CapacityKind_CAPACITY_KIND_ROOMS, "rooms", f.Ever, allocator.MaxRooms)
	c.Note = "that ever had a range"
	list = append(list, c)
	if f.TagsRead {
		c := capacityOf(tagsKind, allTags, f.TagsTotal, f.MaxTags)
		c.Note = "the console's --max-tags"
		f.grow(c, now)
		list = append(list, c)
	}
	for _, s := range f.Slices {
		c := capacityOf(workersKind, workersOf(s.GetRoom(), int(s.GetBits())), s.GetLive(), s.GetUpper()-s.GetLower())
		c.Room, c.Note = s.GetRoom(), "with a window now"
		f.grow(c, now)
		list = append(list, c)
	}
	slices.SortStableFunc(list, func(a, b *marchv1.Capacity) int {
		switch {
		case (a.GetFull() == nil) != (b.GetFull() == nil):
			return map[bool]int{true: 1, false: -1}[a.GetFull() == nil]
		case a.GetFull() != nil:
			return a.GetFull().AsTime().Compare(b.GetFull().AsTime())
		}
		return cmp.Compare(b.GetShare(), a.GetShare())
	})
	return list
}

func capacityOf(kind marchv1.CapacityKind, what string, used, of int64) *marchv1.Capacity {
	c := &marchv1.Capacity{Kind: kind, What: what, Used: used, Of: of}
	if of > 0 {
		c.Share = min(float64(used)/float64(of), 1)
	}
	return c
}

// grow adds the growth that was measured, and the date that follows from it.
func (f capacityFacts) grow(c *marchv1.Capacity, now time.Time) {
	g := f.Trends[c.GetKind()][c.GetWhat()].growth(now)
	c.Measured = durationpb.New(g.Measured.Truncate(time.Second))
	if !g.Known {
		c.Note += fmt.Sprintf("; its growth is known %.0f hours after the console starts", growthNeeds.Hours())
		return
	}
	c.Growth = &g.PerSecond
	if g.PerSecond == 0 {
		return
	}
	if left := float64(c.GetOf()-c.GetUsed()) / g.PerSecond; left < horizon.Seconds() {
		c.Full = timestamppb.New(now.Add(time.Duration(max(left, 0) * float64(time.Second))).Truncate(time.Second))
	}
}

// reserves returns what the rooms have in memory. It runs out only while etcd does not
// answer: otherwise instances lease more.
func (f capacityFacts) reserves() (list []*marchv1.Capacity) {
	for _, r := range f.Rooms {
		if r.GetReserve() == nil {
			continue
		}
		c := &marchv1.Capacity{Kind: marchv1.CapacityKind_CAPACITY_KIND_RESERVE,
			What: "IDs in memory of room " + r.GetName(), Room: r.GetName(), Tag: r.GetReserveTag(), Used: r.GetHeld()}
		if reserve := r.GetReserve().AsDuration(); r.GetEtcdAwaySince() != nil {
			c.Full, c.Note = timestamppb.New(f.AsOf.Add(reserve).Truncate(time.Second)),
				"etcd does not answer; tag "+r.GetReserveTag()+" runs out first"
		} else {
			c.Note = fmt.Sprintf("%s without etcd; tag %s runs out first", words.Short(reserve), r.GetReserveTag())
		}
		list = append(list, c)
	}
	return list
}

func (f capacityFacts) certificates() (list []*marchv1.Capacity) {
	for _, c := range f.Certificates {
		list = append(list, &marchv1.Capacity{
			Kind: marchv1.CapacityKind_CAPACITY_KIND_CERTIFICATE,
			What: fmt.Sprintf("certificate of %s (--%s)", c.Process, c.GetSetting()), Process: c.Process,
			Full: c.GetEnds(), Note: c.GetSubject(),
		})
	}
	return list
}

func (f capacityFacts) tags(now time.Time) (list []*marchv1.Capacity) {
	for _, t := range f.Tags {
		tag := t.GetTag()
		c := &marchv1.Capacity{Kind: marchv1.CapacityKind_CAPACITY_KIND_IDS, What: "IDs of tag " + tag.GetName(),
			Share: t.GetUsed(), Tag: tag.GetName()}
		if p := tag.GetTime(); p != nil {
			c.Kind, c.What, c.Of = marchv1.CapacityKind_CAPACITY_KIND_TIME, "time of tag "+tag.GetName(),
				int64(1)<<p.GetTimeBits()
			c.Used, c.Note = int64(c.GetShare()*float64(c.GetOf())), "in units of "+p.GetUnit().AsDuration().String()
		} else {
			next := tag.GetStart()
			for _, m := range t.GetMarks() {
				next = max(next, m.GetNext())
			}
			c.Used, c.Of = next-tag.GetStart(), tag.GetLimit()-tag.GetStart()
			c.Note = fmt.Sprintf("%.0f IDs a second at the recent peak", t.GetRate())
			if p := tag.GetPeriod(); p != nil { // the share is that of the period
				c.Kind, c.What = marchv1.CapacityKind_CAPACITY_KIND_PERIOD, c.GetWhat()+" in period "+p.GetCurrent()
				c.Of = min(tag.GetLimit(), p.GetEnd()) - max(tag.GetStart(), p.GetFirst())
				c.Used = int64(math.Round(c.GetShare() * float64(c.GetOf())))
				c.Note += ", the next period begins at " + p.GetEnds().AsTime().Format(time.RFC3339)
			}
		}
		// A Duration, and so a time, reaches 290 years.
		if d := t.GetLasts(); d != nil && d.GetSeconds() < math.MaxInt64/int64(time.Second) {
			c.Full = timestamppb.New(now.Add(d.AsDuration()).Truncate(time.Second))
		}
		list = append(list, c)
	}
	return list
}

const (
	// slotFor is the time of which a trend keeps the largest value.
	slotFor = time.Hour
	// window is how many slots at the beginning and at the end are compared. It is longer
	// than the history that etcd keeps between two compactions, so etcd's size in both
	// windows has as much of that.
	window = 3
	// mostSlots bounds what a trend keeps: two weeks.
	mostSlots = 14 * 24
	// growthNeeds is how long a quantity is measured before its growth is known.
	growthNeeds = 2 * window * slotFor
)

// trend is how a quantity changed while it was measured. It never changes.
type trend struct {
	began time.Time // of the first slot
	peaks []int64   // the largest value of each slot, the oldest first
	last  int64
}

// with returns a trend with one more value.
func (t trend) with(now time.Time, value int64) trend {
	if len(t.peaks) == 0 {
		t.began = now
	}
	t.last, t.peaks = value, slices.Clone(t.peaks)
	slot := int(now.Sub(t.began) / slotFor)
	for len(t.peaks) <= slot { // also those in which nothing was measured
		t.peaks = append(t.peaks, value)
	}
	t.peaks[slot] = max(t.peaks[slot], value)
	if n := len(t.peaks) - mostSlots; n > 0 {
		t.began, t.peaks = t.began.Add(time.Duration(n)*slotFor), t.peaks[n:]
	}
	return t
}

type growth struct {
	// PerSecond is 0 where the quantity does not grow. It counts only if Known.
	PerSecond float64
	// Measured is how long it was measured.
	Measured time.Duration
	// Known is whether it was measured for growthNeeds.
	Known bool
}

// growth compares the largest values of the first three hours and of the last three whole
// ones. A single one that was large, and no longer is, is no growth.
func (t trend) growth(now time.Time) (g growth) {
	if len(t.peaks) == 0 {
		return g
	}
	g.Measured = now.Sub(t.began)
	whole := t.peaks[:len(t.peaks)-1] // without the hour that is not over
	if g.Known = len(whole) >= 2*window; !g.Known {
		return g
	}
	first, last := slices.Max(whole[:window]), slices.Max(whole[len(whole)-window:])
	between := time.Duration(len(whole)-window) * slotFor
	g.PerSecond = max(float64(last-first), 0) / between.Seconds()
	return g
}

// What is measured, and is in the list of what can run out.
const (
	etcdKind    = marchv1.CapacityKind_CAPACITY_KIND_ETCD
	tagsKind    = marchv1.CapacityKind_CAPACITY_KIND_TAGS
	workersKind = marchv1.CapacityKind_CAPACITY_KIND_WORKERS
	etcdBytes   = "bytes in etcd"
	allTags     = "tags"
)

func workersOf(room string, bits int) string {
	return fmt.Sprintf("workers of %d bits in room %s", bits, room)
}

// trends are those of a cluster, as one console measured them in memory, by kind and quantity. They never change.
type trends map[marchv1.CapacityKind]map[string]trend

// note returns the trends with a value of each quantity of a kind; those that are missing are forgotten. An etcd that
// is smaller was defragmented, so its measurement begins anew.
func (t trends) note(now time.Time, kind marchv1.CapacityKind, values map[string]int64) trends {
	next := make(map[string]trend, len(values))
	for what, value := range values {
		was := t[kind][what]
		if kind == etcdKind && value < was.last {
			was = trend{}
		}
		next[what] = was.with(now, value)
	}
	all := maps.Clone(t)
	if all == nil {
		all = make(trends)
	}
	all[kind] = next
	return all
}
