package ledger_test

import (
	"testing"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/record"
)

// An instance that joins over a ledger which has met the epoch enters it, though the ledger could not read its key
// before.
func TestJoinEntersAnEpochThatItsLedgerHasMet(t *testing.T) {
	c := newCluster(t, "100 a=0-50 b=50-100")
	l := ledgertest.Open(t, c.Mem.Open())
	if _, err := l.Refresh(bg); err != nil {
		t.Fatal(err)
	}
	epoch := c.Value("epoch")
	c.Corrupt("epoch", []byte("{"))
	_, err := l.Refresh(bg)
	ledgertest.WantKind(t, err, allocator.Refused, "epoch")
	c.Corrupt("epoch", epoch)
	i, err := l.Join(bg, ledger.Registration{Room: "a", Name: "i", Address: "i.test:7010"})
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Check(bg); err != nil {
		t.Fatal(err)
	}
	if got := i.Memory(bg, record.Question{}).Epochs; len(got) != 1 {
		t.Errorf("it was in epochs %q, want the one in force", got)
	}
}
