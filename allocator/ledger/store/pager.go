package store

import (
	"context"
	"slices"
)

// A long list of keys is read in pages. etcd visits each key of an interval whatever the limit is, and writers wait
// meanwhile. Pages that each reach to the end of the list would take the square of its length. So the names of many
// pages are read at once, and the pages are the intervals between them.

// Reads reads keys in one transaction.
type Reads func(context.Context, ...Op) (Answer, error)

// EachPage calls use with several lists, each below a prefix, page by page: with all keys of the names from lo on up to
// end, of each list at most size. The last page has no end.
func EachPage(ctx context.Context, read Reads, lo string, size int64, use func(page []KV, end string) error,
	prefixes ...string) error {
	lists, ops := make([]*list, len(prefixes)), make([]Op, len(prefixes))
	for k, prefix := range prefixes {
		lists[k] = &list{prefix: prefix}
	}
	for {
		end, err := endOfAll(ctx, read, lists, lo, size)
		if err != nil {
			return err
		}
		for k, prefix := range prefixes {
			within := Interval{Key: prefix + lo, End: prefix + end}
			if end == "" {
				within.End = PrefixEnd(prefix)
			}
			ops[k] = Op{Get: &Get{Interval: within}}
		}
		answer, err := read(ctx, ops...)
		if err != nil {
			return err
		}
		if err := use(slices.Concat(answer.Got...), end); err != nil || end == "" {
			return err
		}
		lo = end
	}
}

// list is what is known of a list.
type list struct {
	prefix string
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
func (p *list) more(lo string, size int64) (op Op, limit int64) {
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
		Interval: Interval{Key: p.prefix + from, End: PrefixEnd(p.prefix)}, Limit: limit, KeysOnly: true,
	}}, limit
}

// took stores the names that more asked for.
func (p *list) took(found []KV, limit int64) {
	p.names = slices.Clone(p.names)
	for _, kv := range found {
		p.names = append(p.names, kv.Key[len(p.prefix):])
	}
	p.whole, p.began = int64(len(found)) < limit, true
}

// endOfAll returns the least end of a page of at most size keys from lo on of several lists; empty for the end of the
// lists. It reads the names that they need together.
func endOfAll(ctx context.Context, read Reads, lists []*list, lo string, size int64) (end string, err error) {
	var ops []Op
	var asking []*list
	var limits []int64
	var sum int64
	flush := func() error {
		if len(ops) == 0 {
			return nil
		}
		answer, err := read(ctx, ops...)
		if err != nil {
			return err
		}
		for i, p := range asking {
			p.took(answer.Got[i], limits[i])
		}
		ops, asking, limits, sum = nil, nil, nil, 0
		return nil
	}
	for _, p := range lists {
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
	for _, p := range lists {
		if int64(len(p.names)) > size && (end == "" || p.names[size] < end) {
			end = p.names[size]
		}
	}
	return end, nil
}
