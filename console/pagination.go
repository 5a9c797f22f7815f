package console

import (
	"google.golang.org/protobuf/proto"

	"github.com/march-id/march/allocator/ledger/record"
	marchv1 "github.com/march-id/march/api/march/v1"
)

// maxPage bounds the items of a page, in bytes: clients accept answers of 4 MiB,
// and a thousand layouts of many rooms are larger.
const maxPage = 1 << 20

// passedOver returns unreadable keys as messages.
func passedOver(bad []record.KeyError) []*marchv1.Unreadable {
	var list []*marchv1.Unreadable
	for _, b := range bad {
		list = append(list, &marchv1.Unreadable{Key: b.Key, Why: b.Err.Error()})
	}
	return list
}

// page returns the messages of a page of at most size items, and the last item on it, nil if no more follow: items has
// one more than a page where there are more.
func page[T any, M proto.Message](items []T, size int, toProto func(T) M) (list []M, last *T) {
	for _, item := range items[:min(len(items), size)] {
		list = append(list, toProto(item))
	}
	if list = list[:fitting(list)]; len(list) < len(items) {
		last = &items[len(list)-1]
	}
	return list, last
}

// fitting returns how many of items, from the first, fit into a page of maxPage
// bytes; at least one.
func fitting[M proto.Message](items []M) int {
	size := 0
	for n, item := range items {
		if size += proto.Size(item); size > maxPage && n > 0 {
			return n
		}
	}
	return len(items)
}
