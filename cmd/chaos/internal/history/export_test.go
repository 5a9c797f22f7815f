package history

import (
	"time"

	"github.com/march-id/march/allocator/ledger"
)

// Over has Follow record what a store shows, and check it every so often.
func Over(cfg Config, store ledger.Store, every time.Duration) Config {
	cfg.store, cfg.every = store, every
	return cfg
}
