package ledger

import (
	"context"

	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
)

// Dump reads a Dump. It reads everything in one transaction, so it is for
// tests and for cluster-wide checks, not for serving. Where there are keys or
// values that are not a ledger's, its error names each of them, and the Dump
// has what could be read.
func (l *Ledger) Dump(ctx context.Context) (*record.Dump, error) {
	answer, err := l.gets(ctx, store.OpGetPrefix(string(l.keys)))
	if err != nil {
		return nil, err
	}
	return l.keys.Dump(answer.Revision, answer.Got[0])
}
