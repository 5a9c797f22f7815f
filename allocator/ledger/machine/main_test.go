package machine_test

import (
	"testing"

	"go.uber.org/goleak"
)

// goleak tries again for a second before it complains.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
