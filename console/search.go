package console

import (
	"cmp"
	"context"
	"math"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/setting"
)

const (
	// maxIndexed bounds the tags of an index; it is the default bound of a cluster's
	// tags. A tag takes some 500 bytes.
	maxIndexed = 2_000_000
	// searchWithin is how long a search waits for a new index; then it answers from
	// the old one.
	searchWithin = 50 * time.Millisecond
	// searchAge is the age from which on a search waits for a new index.
	searchAge = time.Second
	// maxHead is how many of the first tags are read where all would take too long: by plans, and by searches while
	// tags are read for the first time. headWithin is how long a search reads them: the answer must come at once.
	maxHead    = 1000
	headWithin = 300 * time.Millisecond
	// indexShare bounds the share of the time that is spent on reading tags: a
	// tenth.
	indexShare = 10
)

// index has all tags read while callers search them.
type index struct {
	*view
	wantsTags *demand
	reading   atomic.Int64 // tags read so far, of the index being made
}

// tagIndex has all tags as they were last read, for searching and sorting. It never changes.
type tagIndex struct {
	tags   []indexed                   // by name
	orders map[marchv1.TagSort][]int32 // places in tags, by each of sorts
	bad    []record.KeyError           // that cannot be read
	at     time.Time                   // when they had been read
	took   time.Duration
}

type indexed struct {
	tag   record.Tag
	marks []*marchv1.Mark // by room
	next  int64           // the largest of these, and of start
	rate  float64
	used  float64 // 0 to 1
	lasts float64 // seconds; infinite without a rate
}

// indexed returns the last snapshot after waiting, for searchWithin at most, for an index that is no older than
// searchAge, or for one that could not be read. It does not wait where reading all tags takes longer than that.
func (s *index) indexed(ctx context.Context) *snapshot {
	asked, within := s.wantsTags.ask(), searchWithin
	if x := s.last.Load().tags; x != nil && x.took > within || x == nil && s.reading.Load() > maxHead {
		within = 0
	}
	return s.await(ctx, within, func(n *snapshot) bool {
		return n.tags != nil && time.Since(n.tags.at) <= searchAge || n.searchedAt.After(asked)
	})
}

// readTags reads all tags. It returns the pause before the next time.
func (s *index) readTags(ctx context.Context) (pause time.Duration) {
	began := time.Now()
	x, err := s.newIndex(ctx)
	now := time.Now()
	if x.at, x.took = now, now.Sub(began); err != nil {
		s.log.Debug("tags not read", "error", err)
	}
	s.publish(func(next *snapshot) {
		if next.searchedAt, next.tagsErr = now, err; err == nil {
			next.tags = x
		}
	})
	return max(searchAge, (indexShare-1)*x.took)
}

func (s *index) newIndex(ctx context.Context) (*tagIndex, error) {
	x := &tagIndex{}
	s.reading.Store(0)
	stored, _, err := s.admin.LastLayout(ctx)
	if err != nil {
		return x, err
	}
	rates := s.rates(ctx)
	x.bad, err = s.admin.EachTagIn(ctx, stored.Ever, func(t record.Tag, marks map[allocator.Room]record.Mark) error {
		if len(x.tags) == maxIndexed {
			return allocator.Errorf(allocator.Refused, "more than %d tags are too many to sort: "+
				"list tags by the beginning of their names instead (ListTags, `march tag list --prefix`)", maxIndexed)
		}
		x.tags = append(x.tags, newIndexed(t, marks, stored.Layout, rates[t.Name]))
		s.reading.Add(1)
		return nil
	})
	x.sort()
	return x, err
}

// head returns some of the first tags by name, which are shown while all tags are read for
// the first time; none if they cannot be read at once.
func (s *index) head(ctx context.Context, from, n int) (list []*marchv1.TagSummary) {
	ctx, cancel := context.WithTimeout(ctx, headWithin)
	defer cancel()
	stored, err := s.ledger.Refresh(ctx)
	if err != nil {
		return nil
	}
	_ = s.admin.FirstTags(ctx, min(from+n, maxHead), stored.Ever,
		func(t record.Tag, marks map[allocator.Room]record.Mark) error {
			i := newIndexed(t, marks, stored.Layout, nil)
			list = append(list, i.summary())
			return nil
		})
	return list[min(from, len(list)):]
}

func newIndexed(t record.Tag, marks map[allocator.Room]record.Mark, l allocator.Layout,
	rates map[allocator.Room]float64) indexed {
	i := indexed{
		// no stored value
		tag: record.Tag{Name: t.Name, TagSettings: t.TagSettings, Created: t.Created,
			KV: store.KV{ModRevision: t.KV.ModRevision}},
		marks: marksToProto(marks), next: t.Start, lasts: math.Inf(1),
	}
	if t.Time != nil { // its IDs follow the clock
		now, l := time.Now().UnixMilli(), t.Time.Layout()
		i.next, i.used = 0, min(max(float64(now-l.Epoch)/float64(l.End()-l.Epoch), 0), 1)
		i.lasts = max(float64(l.End()-now)/1000, 0)
		return i
	}
	for _, m := range marks {
		i.next = max(i.next, m.Next)
	}
	now := time.Now()
	present, span := t.Present(now, i.next)
	t.TagSettings = present
	for room, rate := range rates {
		i.rate += rate
		if r, ok := l.Ranges[room]; ok && rate > 0 {
			from := max(marks[room].Next, t.Start, t.Skip, t.Skips[room])
			i.lasts = min(i.lasts, float64(l.CountIDs(r, from, t.Limit))/rate)
		}
	}
	if span.End > 0 && i.lasts > span.Ends.Sub(now).Seconds() {
		i.lasts = math.Inf(1) // it counts anew before
	}
	i.used = allocator.Used(t.Start, t.Limit, i.next)
	return i
}

func (i *indexed) summary() *marchv1.TagSummary {
	return &marchv1.TagSummary{Tag: setting.ToProto(i.tag), Marks: i.marks, Rate: i.rate,
		Used: i.used, Lasts: lasts(i.lasts)}
}

// sorts are what tags can be sorted by. Names are unique and decide last.
var sorts = map[marchv1.TagSort]func(*indexed) int64{
	marchv1.TagSort_TAG_SORT_NAME:    func(*indexed) int64 { return 0 },
	marchv1.TagSort_TAG_SORT_STRICT:  func(i *indexed) int64 { return int64(flag(i.tag.StrictRetract)) },
	marchv1.TagSort_TAG_SORT_RATE:    func(i *indexed) int64 { return ordered(i.rate) },
	marchv1.TagSort_TAG_SORT_USED:    func(i *indexed) int64 { return ordered(i.used) },
	marchv1.TagSort_TAG_SORT_LASTS:   func(i *indexed) int64 { return ordered(i.lasts) },
	marchv1.TagSort_TAG_SORT_NEXT:    func(i *indexed) int64 { return i.next },
	marchv1.TagSort_TAG_SORT_CREATED: func(i *indexed) int64 { return i.tag.Created.UnixNano() },
}

// ordered returns a number for another one, from 0 on, in the same order.
func ordered(v float64) int64 { return int64(math.Float64bits(v)) } //nolint:gosec // the sign is 0

// sort makes the orders. The keys of an order stand side by side, so a million tags take a tenth of a second.
func (x *tagIndex) sort() {
	type place struct {
		key int64
		at  int32
	}
	places := make([]place, len(x.tags))
	x.orders = make(map[marchv1.TagSort][]int32, len(sorts))
	for by, key := range sorts {
		for i := range x.tags {
			places[i] = place{key(&x.tags[i]), int32(i)} //nolint:gosec // up to maxIndexed
		}
		slices.SortFunc(places, func(a, b place) int {
			if c := cmp.Compare(a.key, b.key); c != 0 {
				return c
			}
			return int(a.at - b.at)
		})
		order := make([]int32, len(places))
		for i, p := range places {
			order[i] = p.at
		}
		x.orders[by] = order
	}
}

func (s *index) SearchTags(ctx context.Context, r *marchv1.SearchTagsRequest) (*marchv1.SearchTagsResponse, error) {
	size, err := api.PageSize(r.GetPageSize())
	if err != nil {
		return nil, err
	}
	by := cmp.Or(r.GetSort(), marchv1.TagSort_TAG_SORT_NAME)
	switch _, ok := sorts[by]; {
	case !ok:
		return nil, api.NotAllowed("sort", by)
	case r.GetOffset() < 0:
		return nil, allocator.Errorf(allocator.Invalid, "offset: %d; allowed: 0 or more", r.GetOffset())
	case len(r.GetSearch()) > allocator.MaxNameLength:
		return nil, allocator.Errorf(allocator.Invalid, "search: %d bytes; allowed: up to %d, as many as a name has",
			len(r.GetSearch()), allocator.MaxNameLength)
	}
	now := s.indexed(ctx)
	x := now.tags
	if x == nil {
		answer := &marchv1.SearchTagsResponse{Total: s.reading.Load()}
		if now.tagsErr == nil && by == marchv1.TagSort_TAG_SORT_NAME && !r.GetDescending() && r.GetSearch() == "" {
			answer.Tags = s.head(ctx, int(r.GetOffset()), size)
		}
		return answer, now.tagsErr
	}
	answer := &marchv1.SearchTagsResponse{Total: int64(len(x.tags)), AsOf: timestamppb.New(x.at),
		Unreadable: passedOver(x.bad)}
	order, search := x.orders[by], strings.ToLower(r.GetSearch()) // names have no large letters
	at := func(k int) *indexed {
		if r.GetDescending() {
			k = len(order) - 1 - k
		}
		return &x.tags[order[k]]
	}
	if search == "" { // a page costs the same however many tags there are
		answer.Found = int64(len(order))
		for k := int(r.GetOffset()); k < len(order) && len(answer.GetTags()) < size; k++ {
			answer.Tags = append(answer.Tags, at(k).summary())
		}
		return answer, nil
	}
	for k := range order {
		t := at(k)
		if !strings.Contains(string(t.tag.Name), search) {
			continue
		}
		answer.Found++
		if answer.Found > int64(r.GetOffset()) && len(answer.GetTags()) < size {
			answer.Tags = append(answer.Tags, t.summary())
		}
	}
	return answer, nil
}
