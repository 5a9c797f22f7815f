package console

import "google.golang.org/protobuf/proto"

// maxPage bounds the items of a page, in bytes: clients take answers of 4 MiB,
// and a thousand layouts of many rooms are more.
const maxPage = 1 << 20

// fitting returns how many of items, from the first, are a page: all, or as
// many as fit into maxPage, and one at least.
func fitting[M proto.Message](items []M) int {
	size := 0
	for n, item := range items {
		if size += proto.Size(item); size > maxPage && n > 0 {
			return n
		}
	}
	return len(items)
}
