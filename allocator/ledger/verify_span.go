package ledger

import "strings"

// span says up to where a chunk is asked for. etcd visits each key of an interval
// to count it, whatever the limit is, and writers wait meanwhile: pages of all
// the names that are left would take the square of their number. So a span is
// the names that share their first bytes with the last one that was read, as
// many bytes as make it about a page.
type span struct {
	bytes  int    // how many bytes they share
	widen  int    // so many fewer for now, while nothing is found
	shared string // those bytes, of the present span
	whole  bool   // whether it is read from its beginning
	keys   int    // read in it so far, of the list that has most
}

// end returns the end of names that begin as lo does, empty for no bound.
func (s *span) end(lo string) string {
	name := strings.TrimSuffix(lo, "\x00")
	shared := name[:min(max(s.bytes-s.widen, 0), len(name))]
	if shared != s.shared {
		s.shared, s.keys, s.whole = shared, 0, lo == shared
	}
	if shared == "" || shared[len(shared)-1] >= 0x7f { // no name of this program's
		return ""
	}
	if end := shared[:len(shared)-1] + string(shared[len(shared)-1]+1); end > lo {
		return end
	}
	return ""
}

// read takes note of a page: how many keys its longest list had, and how many
// bytes the first and the last of a full list of limit share, -1 if none was
// full.
func (s *span) read(most, limit, common int) {
	s.keys += most
	switch full := common >= 0; {
	case !full && most == 0 && s.keys == 0:
		s.widen = 2*s.widen + 1
		return
	case full && s.keys > 4*limit:
		s.bytes, s.keys = len(s.shared)+1, 0
	case full:
		s.bytes = max(s.bytes, common)
	case s.whole && s.keys < limit/4:
		s.bytes = max(len(s.shared)-1, 0)
	}
	s.widen = 0
}

// commonBytes returns how many bytes a and b begin with in common.
func commonBytes(a, b string) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}
