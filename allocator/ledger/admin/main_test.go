package admin_test

import (
	"context"
	"testing"

	"go.uber.org/goleak"

	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/admin"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const prefix = "/march/default/"

var bg = context.Background()

// manage returns the administration of a ledger's cluster.
func manage(l *ledger.Ledger) *admin.Admin { return admin.New(l, admin.DefaultConfig()) }
