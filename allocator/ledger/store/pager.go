package store

import (
	"context"
	"slices"
)

// Pager divides a long list of keys into pages. etcd visits each key of an interval whatever
// the limit is, and writers wait meanwhile. Pages that each reach to the end of the list would
// take the square of its length. So a pager reads the names of many pages at once, and the
// pages are the intervals between them.
type Pager struct {
	Read   func(context.Context, ...Op) (Answer, error)
	Prefix string
	names  []string // of the keys without the prefix that are next, in order
	whole  bool     // names has all names to the end
	began  bool     // names were read before
}

const (
	// pagesAhead is how many pages' names are read at once, and pagesFirst how many the first
	// time: most lists are short.
	pagesAhead = 64
	pagesFirst = 2
	// namesAtOnce bounds the names that one transaction reads of all lists together, unless a
	// single list has more.
	namesAtOnce = 100_000
)

// more returns the operation that reads the names needed for a page of at most size keys from
// lo on, and its limit; 0 if the known names suffice.
func (p *Pager) more(lo string, size int64) (op Op, limit int64) {
	n, _ := slices.BinarySearch(p.names, lo)
	p.names = p.names[n:]
	if int64(len(p.names)) > size || p.whole {
		return Op{}, 0
	}
	from := lo
	if len(p.names) > 0 {
		from = p.names[len(p.names)-1] + "\x00"
	}
	limit = pagesFirst * size
	if p.began {
		limit = pagesAhead * size
	}
	return Op{Get: &Get{
		Interval: Interval{Key: p.Prefix + from, End: PrefixEnd(p.Prefix)}, Limit: limit, KeysOnly: true,
	}}, limit
}

// took stores the names that more asked for.
func (p *Pager) took(found []KV, limit int64) {
	p.names = slices.Clone(p.names)
	for _, kv := range found {
		p.names = append(p.names, kv.Key[len(p.Prefix):])
	}
	p.whole, p.began = int64(len(found)) < limit, true
}

// End returns the exclusive end of a page of at most size keys from lo on; empty for the end of
// the list.
func (p *Pager) End(ctx context.Context, lo string, size int64) (string, error) {
	return EndOfAll(ctx, []*Pager{p}, lo, size)
}

// EndOfAll returns the least end of a page from lo on of several lists. It reads the names that
// they need together.
func EndOfAll(ctx context.Context, pagers []*Pager, lo string, size int64) (hi string, err error) {
	var ops []Op
	var asking []*Pager
	var limits []int64
	var sum int64
	flush := func() error {
		if len(ops) == 0 {
			return nil
		}
		answer, err := asking[0].Read(ctx, ops...)
		if err != nil {
			return err
		}
		for i, p := range asking {
			p.took(answer.Got[i], limits[i])
		}
		ops, asking, limits, sum = nil, nil, nil, 0
		return nil
	}
	for _, p := range pagers {
		op, limit := p.more(lo, size)
		if limit == 0 {
			continue
		}
		if sum+limit > namesAtOnce {
			if err := flush(); err != nil {
				return "", err
			}
		}
		ops, asking, limits, sum = append(ops, op), append(asking, p), append(limits, limit), sum+limit
	}
	if err := flush(); err != nil {
		return "", err
	}
	for _, p := range pagers {
		if int64(len(p.names)) > size && (hi == "" || p.names[size] < hi) {
			hi = p.names[size]
		}
	}
	return hi, nil
}

// Within reads the part of a list from lo up to hi; an empty hi is the list's end.
func Within(prefix, lo, hi string) Op {
	end := PrefixEnd(prefix)
	if hi != "" {
		end = prefix + hi
	}
	return Op{Get: &Get{Interval: Interval{Key: prefix + lo, End: end}}}
}
