package room

import (
	"cmp"
	"slices"
	"sort"

	"github.com/march-id/march/allocator"
)

// index has the issuers in the order of their tags, in sorted blocks. So adding or
// removing one, and finding the start of a page, are cheap however many issuers
// there are. The zero value is empty.
type index struct{ blocks [][]tagged }

// maxBlock is how many issuers a block has at most. A full block is split in two.
const maxBlock = 256

func (x tagged) compare(tag allocator.Tag) int { return cmp.Compare(x.tag, tag) }

// find returns the block in which a tag is or belongs, and the place in it.
func (x *index) find(tag allocator.Tag) (block, at int, found bool) {
	block = max(sort.Search(len(x.blocks), func(i int) bool { return x.blocks[i][0].tag > tag })-1, 0)
	if len(x.blocks) == 0 {
		return 0, 0, false
	}
	at, found = slices.BinarySearchFunc(x.blocks[block], tag, tagged.compare)
	return block, at, found
}

// put adds an issuer, or replaces the one of its tag.
func (x *index) put(t tagged) {
	block, at, found := x.find(t.tag)
	switch {
	case found:
		x.blocks[block][at] = t
		return
	case len(x.blocks) == 0:
		x.blocks = [][]tagged{{t}}
		return
	}
	b := slices.Insert(x.blocks[block], at, t)
	if x.blocks[block] = b; len(b) <= maxBlock {
		return
	}
	half := len(b) / 2
	if at == len(b)-1 {
		half = at // tags that come in order fill their blocks
	}
	x.blocks[block] = slices.Clone(b[:half])
	x.blocks = slices.Insert(x.blocks, block+1, slices.Clone(b[half:]))
}

// remove removes the issuer of a tag.
func (x *index) remove(tag allocator.Tag) {
	block, at, found := x.find(tag)
	if !found {
		return
	}
	if x.blocks[block] = slices.Delete(x.blocks[block], at, at+1); len(x.blocks[block]) == 0 {
		x.blocks = slices.Delete(x.blocks, block, block+1)
	}
}

// after appends to list the first n issuers with a tag after the given one; an empty tag
// asks for the first of all.
func (x *index) after(tag allocator.Tag, n int, list []tagged) []tagged {
	block, at, found := x.find(tag)
	if found {
		at++
	}
	for ; block < len(x.blocks) && n > 0; block, at = block+1, 0 {
		part := x.blocks[block][at:]
		part = part[:min(len(part), n)]
		list, n = append(list, part...), n-len(part)
	}
	return list
}
