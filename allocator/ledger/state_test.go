package ledger_test

import (
	"testing"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/ledgertest"
)

func TestLeasableBeforeAnythingWasRead(t *testing.T) {
	l := ledgertest.Open(t, ledgertest.NewFake(t).Open())
	ledgertest.WantKind(t, l.Leasable(), allocator.Unavailable, "has not been read from etcd yet")
	if r, _ := l.Layout(); r.Layout.Version != 0 {
		t.Errorf("layout %+v", r)
	}
	_, err := l.Refresh(bg)
	ledgertest.WantKind(t, err, allocator.Refused, "march layout init")
}
