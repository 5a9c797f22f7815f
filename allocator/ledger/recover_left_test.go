package ledger_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/ledgertest"
)

// Layout versions go on above all that anybody serves, of recovers too that a
// later restore has forgotten, and whom nobody asked: who was left out of that
// takes up the layout of the next one, instead of taking it for one that it has
// served long since.
func TestVersionsGoOnAboveForgottenRecovers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, "100 a=0-50 b=50-100")
		a, b := c.start("a"), c.start("b")
		b.lease(10)
		backup := c.mem.Revision()
		served := int64(0)
		for range 2 { // each knows of the one before
			time.Sleep(time.Second)
			c.mem.Restore(backup, 0, ledgertest.ClusterID)
			report, err := c.recover(c.mem.Open(), []*process{a, b})
			if err != nil || report.Version <= served+100 {
				t.Fatalf("%+v, after version %d, %v", report, served, err)
			}
			c.admin = open(t, c.mem.Open())
			b.ledger.Uncheck()
			b.lease(10)
			served = c.move("10 a=0-5 b=5-10").Layout.Version // and so do layouts that follow it
			b.ledger.Uncheck()
			if seg := b.lease(10); seg.Version != served {
				t.Fatalf("leased %v under version %d", seg, served)
			}
			if err := b.Serve(bg, served); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Second)
		c.mem.Restore(backup, 0, ledgertest.ClusterID)
		report, err := c.recover(c.mem.Open(), nil, without(a.id(), b.id()))
		if err != nil || report.Version <= served {
			t.Fatalf("%+v, though an instance that was left out serves version %d, %v", report, served, err)
		}
		b.ledger.Uncheck()
		if _, err := b.ledger.Refresh(bg); err != nil {
			t.Fatal(err)
		}
		if record, _ := b.ledger.Layout(); record.Layout.Version != report.Version {
			t.Errorf("the layout of who was left out is %v", record.Layout)
		}
	})
}

// A clock that went wrong is no worse than none: versions lie above those that are
// known.
func TestVersionOfRecover(t *testing.T) {
	at := time.Date(2000, 1, 1, 0, 1, 0, 0, time.UTC)
	for _, test := range []struct {
		known int64
		at    time.Time
		want  int64
	}{
		{1, at, 60_000},
		{59_899, at, 60_000},
		{59_900, at, 60_000},
		{59_901, at, 60_001},
		{1_000_000, at, 1_000_100},
		{1, at.Add(time.Millisecond), 60_001},
		{1, time.Unix(0, 0), 101}, // a clock that was never set
		{7, time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC), 3_155_760_000_000},
		{7, time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC), 9_223_372_036_854}, // below 2^44
	} {
		if got := ledger.NewVersion(test.known, test.at); got != test.want {
			t.Errorf("after version %d, at %v: version %d, want %d", test.known, test.at, got, test.want)
		}
	}
}

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

func (p *process) id() ledger.InstanceID {
	return ledger.Registration{Room: p.room, Name: p.name}.ID()
}
