package ledger_test

import (
	"context"
	"strings"
	"testing"

	"github.com/march-id/march/allocator/ledger/ledgertest"
)

// Who was left out of a recover raises its marks when it is back, be it of a room
// that the restored etcd never had: that is nothing wrong. They count from when
// the room has a range again. A lease of such a room is wrong all the same.
func TestLeftOutOfAForgottenRoom(t *testing.T) {
	c := newCluster(t, "100 a=0-50")
	a := c.start("a")
	a.lease(10)
	backup := c.mem.Revision()
	c.move("100 a=0-50 c=50-100")
	p := c.start("c")
	held := p.lease(100_000_000).Last() // above the margin
	ctx, stop := context.WithCancel(bg)
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	eventually(t, "it runs", func() bool {
		m, err := p.Report(false)
		_, beats := c.mem.Value(prefix + "alive/c/" + string(p.name))
		return err == nil && beats && len(m.Seen) > 0
	})
	c.mem.Restore(backup, 0, ledgertest.ClusterID)
	delete(c.issued["t"], "c") // of a stretch that nobody who recovers knows of
	if report, err := c.recover(c.mem.Open(), []*process{a}); err != nil || len(report.Missing) > 0 {
		t.Fatalf("%+v, %v", report, err)
	}
	p.ledger.Uncheck()
	if _, err := p.ledger.Refresh(bg); err != nil {
		t.Fatal(err)
	}
	eventually(t, "its mark is raised", func() bool { return c.mark("c").Next > held })
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	verify(t, c)
	c.check()

	raised := string(c.value("marks/c/t"))
	c.corrupt("marks/c/t", []byte(strings.TrimSuffix(raised, "}")+`,"era":{"epoch":"e","layout_revision":"1","version":"2","first":"50","end":"51"}}`))
	report, err := open(t, c.mem.Open()).VerifyPages(bg, 1, nil)
	if err != nil || len(report.Problems) != 1 || !strings.Contains(report.Problems[0], "marks of room c, which never was, the first is /march/default/marks/c/t") {
		t.Errorf("%q, %v", report.Problems, err)
	}
	d, err := open(t, c.mem.Open()).Dump(bg)
	if err != nil || !strings.Contains(strings.Join(d.Problems(), "\n"), "tag t has a mark of room c, which never was") {
		t.Errorf("%q, %v", d.Problems(), err)
	}
	c.corrupt("marks/c/t", []byte(raised))

	c.admin = open(t, c.mem.Open())
	c.move("100 a=0-50 c=50-100")
	a.ledger.Uncheck()
	if seg := a.lease(10); seg.First <= held {
		t.Errorf("leased %v, and room c %d before", seg, held)
	}
	p.ledger.Uncheck()
	p.lease(10)
	verify(t, c)
	c.check()
}
