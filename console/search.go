package console

import (
	"cmp"
	"context"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/api"
	"github.com/march-id/march/api/levers"
	marchv1 "github.com/march-id/march/api/march/v1"
)

const (
	// maxIndexed is how many tags an index takes: a tag has some 500 bytes in it.
	maxIndexed = 1_000_000
	// searchWithin is how long a search waits for tags to be read anew; then it
	// answers from those read before.
	searchWithin = 50 * time.Millisecond
	// searchAge is how old an index may be without a search waiting for another.
	searchAge = time.Second
	// indexShare bounds how much of the time is spent on reading tags: a tenth.
	indexShare = 10
)

// tagIndex is all tags as they were read last, for searching and sorting. Only
// orders changes.
type tagIndex struct {
	tags []indexed // by name
	took time.Duration
	mu   struct {
		sync.Mutex
		orders map[string][]int32 // places in tags, by what they are sorted by
	}
}

// indexed is a tag in an index.
type indexed struct {
	tag   ledger.Tag
	marks []*marchv1.Mark // by room
	next  int64           // the largest of these, and of start
	rate  float64
	used  float64 // 0 to 1
	lasts float64 // seconds; infinite without a rate
}

// readTags reads all tags.
func (s *Server) readTags(ctx context.Context, _ *tagIndex) (*tagIndex, time.Duration, error) {
	began := time.Now()
	s.reading.Store(0)
	record, err := s.ledger.Refresh(ctx)
	if err != nil {
		return nil, time.Second, err
	}
	rates := s.rates(ctx)
	x := &tagIndex{}
	x.mu.orders = make(map[string][]int32)
	err = s.ledger.EachTag(ctx, func(t ledger.Tag, marks map[allocator.Room]ledger.Mark) error {
		if len(x.tags) == maxIndexed {
			return allocator.Errorf(allocator.Refused, "there are more than %d tags, too many to sort: list them by the beginning of their names (ListTags, `march tag list --prefix`)", maxIndexed)
		}
		x.tags = append(x.tags, newIndexed(t, marks, record.Layout, rates[t.Name]))
		s.reading.Add(1)
		return nil
	})
	x.took = time.Since(began)
	if err != nil {
		s.log.Debug("tags not read", "error", err)
	}
	return x, max(searchAge, (indexShare-1)*x.took), err
}

func newIndexed(t ledger.Tag, marks map[allocator.Room]ledger.Mark, l allocator.Layout, rates map[allocator.Room]float64) indexed {
	i := indexed{
		tag:   ledger.Tag{Name: t.Name, Settings: t.Settings, Created: t.Created}, // without what it is stored as
		marks: marksToProto(marks), next: floorOf(t, marks), lasts: math.Inf(1),
	}
	for room, rate := range rates {
		i.rate += rate
		if r, ok := l.Ranges[room]; ok && rate > 0 {
			i.lasts = min(i.lasts, seconds(l, r, max(marks[room].Next, t.Settings.Start), t.Settings.Limit, rate))
		}
	}
	i.used = allocator.Used(t.Settings.Start, t.Settings.Limit, i.next)
	return i
}

// sorts are what tags can be sorted by; names are unique and decide last.
var sorts = map[string]func(a, b *indexed) int{
	"name":    func(_, _ *indexed) int { return 0 },
	"strict":  func(a, b *indexed) int { return strictness(a) - strictness(b) },
	"rate":    func(a, b *indexed) int { return cmp.Compare(a.rate, b.rate) },
	"used":    func(a, b *indexed) int { return cmp.Compare(a.used, b.used) },
	"lasts":   func(a, b *indexed) int { return cmp.Compare(a.lasts, b.lasts) },
	"next":    func(a, b *indexed) int { return cmp.Compare(a.next, b.next) },
	"created": func(a, b *indexed) int { return a.tag.Created.Compare(b.tag.Created) },
}

func strictness(i *indexed) int {
	if i.tag.Settings.StrictRetract {
		return 1
	}
	return 0
}

// order returns the places of all tags, sorted.
func (x *tagIndex) order(by string) []int32 {
	x.mu.Lock()
	defer x.mu.Unlock()
	if order, ok := x.mu.orders[by]; ok {
		return order
	}
	order := make([]int32, len(x.tags))
	for i := range order {
		order[i] = int32(i) //nolint:gosec // up to maxIndexed
	}
	if by != "name" {
		slices.SortStableFunc(order, func(a, b int32) int { return sorts[by](&x.tags[a], &x.tags[b]) })
	}
	x.mu.orders[by] = order
	return order
}

// SearchTags implements ConsoleService.
func (s *Server) SearchTags(ctx context.Context, r *marchv1.SearchTagsRequest) (*marchv1.SearchTagsResponse, error) {
	size, err := api.PageSize(r.GetPageSize())
	if err != nil {
		return nil, err
	}
	by := cmp.Or(r.GetSort(), "name")
	switch _, ok := sorts[by]; {
	case !ok:
		return nil, allocator.Errorf(allocator.Invalid, "sort: %q; allowed: name, strict, rate, used, lasts, next, created", by)
	case r.GetOffset() < 0:
		return nil, allocator.Errorf(allocator.Invalid, "offset: %d; allowed: 0 or more", r.GetOffset())
	case len(r.GetSearch()) > allocator.MaxNameLength:
		return nil, allocator.Errorf(allocator.Invalid, "search: %d bytes; allowed: up to %d, as many as a name has", len(r.GetSearch()), allocator.MaxNameLength)
	}
	within := searchWithin
	if before := s.tags.before(); before != nil && before.took > within {
		within = 0 // it would be in vain
	}
	x, at, err := s.tags.get(ctx, searchAge, within)
	if at.IsZero() {
		return &marchv1.SearchTagsResponse{Total: s.reading.Load()}, err
	}
	answer := &marchv1.SearchTagsResponse{Total: int64(len(x.tags)), AsOf: timestamppb.New(at)}
	order := x.order(by)
	for k := range order {
		place := order[k]
		if r.GetDescending() {
			place = order[len(order)-1-k]
		}
		t := &x.tags[place]
		if !strings.Contains(string(t.tag.Name), r.GetSearch()) {
			continue
		}
		answer.Found++
		if answer.Found > int64(r.GetOffset()) && len(answer.GetTags()) < size {
			answer.Tags = append(answer.Tags, &marchv1.TagSummary{
				Tag: levers.TagToProto(t.tag), Marks: t.marks, Rate: t.rate, Used: t.used, Lasts: lasts(t.lasts),
			})
		}
	}
	return answer, nil
}
