package ledger_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/recovery"
)

// Instances that left in good order before the backup are not asked, and those that
// left after it are; no answer of 500 remembered addresses holds the recover up while
// leasing is halted. Each of them once had to be named, and was asked one by one
// under the halt.
func TestRecoverAsksOnlyWhatMayHaveLeased(t *testing.T) {
	c := newCluster(t, "100 a=0-50 b=50-100")
	p := c.start("a")
	ctx, stop := context.WithCancel(bg)
	ran := make(chan error, 1)
	go func() { ran <- p.Ledger.Run(ctx, func(ledger.TagChange) {}, nil) }()
	defer func() {
		stop()
		if err := <-ran; err != nil {
			t.Error(err)
		}
	}()
	p.Lease(10)
	knows := func(name allocator.Instance, left bool) bool {
		return slices.ContainsFunc(p.Memory(bg, record.Question{}).Seen, func(s record.SeenInstance) bool {
			return s.Name == name && (s.Left > 0) == left
		})
	}
	eventually(t, "its watch is there", func() bool { c.startAs("b", "first"); return knows("first", false) })
	leave := func(name allocator.Instance) {
		q := c.startAs("b", name)
		q.Lease(10)
		eventually(t, "it sees "+string(name), func() bool { return knows(name, false) })
		if err := q.Leave(bg); err != nil {
			t.Fatal(err)
		}
		eventually(t, "it sees "+string(name)+" leave", func() bool { return knows(name, true) })
	}
	leave("before")
	c.Corrupt("beat", nil)
	p.hear()
	p.Lease(10) // writes a beat
	backup := c.Mem.Revision()
	leave("after")
	c.Mem.Restore(backup, 0, ledgertest.ClusterID)
	var mu sync.Mutex
	asked := make(map[string]int)
	count := func(cfg *recovery.Config) {
		ask := cfg.Ask
		cfg.Ask = func(ctx context.Context, s record.SeenInstance, q record.Question,
			use record.UseMarks) (record.Memory, error) {
			mu.Lock()
			asked[string(s.Name)]++
			mu.Unlock()
			return ask(ctx, s, q, use)
		}
		memory := record.Memory{UUID: p.Memory(bg, record.Question{}).UUID, Room: "b", Name: "second",
			Incarnations: []string{"second"}}
		for i := range 500 {
			name := fmt.Sprint("silent-", i)
			memory.Seen = append(memory.Seen, record.SeenInstance{Room: "b", Name: allocator.Instance(name),
				Incarnation: name, Address: name + ":1"})
			cfg.Without = append(cfg.Without, record.InstanceID("b/"+name))
		}
		cfg.Memories = []record.Memory{memory}
		cfg.Without = append(cfg.Without, "b/first")
	}
	delete(c.Issued["t"], "b") // no memory has that
	report, err := c.recover(c.Mem.Open(), []*process{p}, count)
	ledgertest.WantKind(t, err, allocator.Refused, "--without b/after")
	if !slices.Equal(report.LeftBefore, []record.InstanceID{"b/before"}) {
		t.Errorf("left before: %v", report.LeftBefore)
	}
	clear(asked)
	c.mustRecover([]*process{p}, count, margin(2), func(cfg *recovery.Config) {
		cfg.Without = append(cfg.Without, "b/after")
	})
	if asked["before"] != 0 || asked["after"] != 1 || asked["silent-7"] != 1 || asked[string(p.Name())] != 3 {
		t.Errorf("asked: before %d, after %d, silent %d, alive %d", asked["before"], asked["after"],
			asked["silent-7"], asked[string(p.Name())])
	}
	c.Check()
}
