package ledger_test

import (
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/recovery"
)

func stopped(ids ...record.InstanceID) func(*recovery.Config) {
	return func(cfg *recovery.Config) { cfg.Stopped = ids }
}
