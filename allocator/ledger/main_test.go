package ledger_test

import (
	"testing"

	"go.uber.org/goleak"
)

// goleak tries again for a second before it complains, by which time an etcd
// that was closed is gone.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
