package ledger_test

import (
	"context"
	"slices"
	"testing"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/recovery"
)

// Where instances prove their names, the answer of another one changes nothing, whether it is
// of the room or not.
func TestRecoverNamed(t *testing.T) {
	c := newCluster(t, "100 a=0-50 b=50-100")
	a, also, b := c.start("a"), c.start("a"), c.start("b")
	living := []*process{a, also, b}
	for _, p := range living {
		p.Lease(100)
	}
	ask := asking(living)
	for _, other := range []*process{also, b} {
		report, err := c.recover(c.Mem.Open(), nil, func(cfg *recovery.Config) {
			cfg.Named = true
			cfg.Ask = func(ctx context.Context, s record.SeenInstance, q record.Question,
				use record.UseMarks) (record.Memory, error) {
				if s.ID() != a.id() {
					return ask(ctx, s, q, use)
				}
				m := other.Memory(ctx, q)
				return m, use(m.Room, m.Marks)
			}
		})
		ledgertest.WantKind(t, err, allocator.Refused)
		if got := missing(report); !slices.Equal(got, []string{string(a.id())}) {
			t.Errorf("%s answers for %s: missing are %q", other.id(), a.id(), got)
		}
	}
	c.mustRecover(living, func(cfg *recovery.Config) { cfg.Named = true })
}
