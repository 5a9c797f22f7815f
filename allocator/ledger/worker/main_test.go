package worker_test

import (
	"testing"

	"go.uber.org/goleak"
)

// goleak tries again for a second before it fails.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
