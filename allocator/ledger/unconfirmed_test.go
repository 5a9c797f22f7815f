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
	"github.com/march-id/march/allocator/ledger/store"
)

// require sets whether the cluster requires journals.
func (c *cluster) require(is bool) {
	c.Helper()
	s, err := c.Admin.UpdateSettings(bg, func(s *record.ClusterSettings) error {
		s.RequireJournal = record.JournalRequired(is)
		return nil
	}, "ann")
	if err != nil || bool(s.RequireJournal) != is {
		c.Fatalf("update settings: %+v, %v", s, err)
	}
}

// run runs an instance until the test ends.
func (p *process) run(t *testing.T) {
	ctx, cancel := context.WithCancel(bg)
	var done sync.WaitGroup
	done.Go(func() {
		if err := p.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { cancel(); done.Wait() })
	eventually(t, "its heartbeat is there", func() bool {
		_, ok := p.c.Mem.Value(prefix + "alive/" + string(p.Room()) + "/" + string(p.Name()))
		return ok
	})
}

// unconfirmed returns the instances that are, as etcd has it.
func (c *cluster) unconfirmed() (ids []record.InstanceID) {
	c.Helper()
	all, _, err := c.Admin.Instances(bg, "")
	if err != nil {
		c.Fatalf("instances: %v", err)
	}
	for _, i := range all {
		if i.Unconfirmed {
			ids = append(ids, i.ID())
		}
	}
	return ids
}

// refusesUnconfirmed checks that p leases nothing because it is without its journal.
func (p *process) refusesUnconfirmed(t *testing.T) {
	t.Helper()
	seg, err := p.TryLease("t", 10)
	ledgertest.WantKind(t, err, allocator.Refused,
		"instance "+string(p.Room())+"/"+string(p.Name())+" started without its journal",
		fmt.Sprintf("`march instance confirm %s %s`", p.Room(), p.Name()), "`march recover`")
	if seg.Count > 0 {
		t.Errorf("leased %v", seg)
	}
}

// serve has p look at its registration, as a heartbeat does.
func (p *process) serve(t *testing.T) {
	t.Helper()
	var err error
	for range 3 {
		if err = p.Serve(bg, p.Version()); err == nil {
			return
		}
	}
	t.Errorf("serve: %v", err)
}

// Settings are the zero ones until an operator sets them, once whatever becomes of
// the transaction, and together with the operator's name.
func TestUpdateSettings(t *testing.T) {
	for _, fate := range ledgertest.Fates() {
		t.Run(fate.String(), func(t *testing.T) {
			c := newCluster(t, "100 a=0-50 b=50-100")
			if s, err := c.Admin.Settings(bg); err != nil || s.RequireJournal {
				t.Errorf("before: %+v, %v", s, err)
			}
			conn := c.Mem.Open()
			met := 0
			conn.Fate(func(txn store.Txn) ledgertest.Fate {
				if ledgertest.PutsUnder("settings")(txn) {
					if met++; met == 1 {
						return ledgertest.Fate{Name: fate, N: 4}
					}
				}
				return ledgertest.Fate{}
			})
			l := ledgertest.Open(t, conn)
			change := func(s *record.ClusterSettings) error { s.RequireJournal = true; return nil }
			s, err := manage(l).UpdateSettings(bg, change, "ann")
			if err != nil {
				s, err = manage(l).UpdateSettings(bg, change, "ann")
			}
			c.Mem.Arrive()
			if now, readErr := c.Admin.Settings(bg); err != nil || !s.RequireJournal ||
				!now.RequireJournal || met == 0 {
				t.Errorf("%+v, %v, then %+v, %v; met %d times", s, err, now, readErr, met)
			}
			audits, _, err := c.Admin.Audits(bg, "", 10)
			if err != nil || len(audits) == 0 || audits[0].Action != "update settings" || audits[0].Actor != "ann" ||
				audits[0].Object != "settings" {
				t.Errorf("audit: %+v, %v", audits, err)
			}
			verified(t, c)
			c.Check()
		})
	}
}

// Settings that cannot be read stop leasing: they may say that it must.
func TestSettingsThatCannotBeRead(t *testing.T) {
	c := newCluster(t, "100 a=0-50 b=50-100")
	p := c.start("a")
	p.Lease(10)
	c.Corrupt("settings", []byte(`{"format":2,"journal":"perhaps","nonce":"x"}`))
	p.Ledger.Uncheck()
	_, err := p.TryLease("t", 10)
	ledgertest.WantKind(t, err, allocator.Refused, "settings", "perhaps", "required")
	c.Corrupt("settings", nil)
	p.Lease(10)
	c.Check()
}

// A new cluster that requires journals comes up by itself, with journals or
// without; and again after all of it was stopped, with its journals.
func TestRequiredInANewCluster(t *testing.T) {
	c := newCluster(t, "100 a=0-50 b=50-100")
	c.require(true)
	dir := t.TempDir()
	p, q, r := c.mustStartWith(t, "a", "one", dir), c.mustStartWith(t, "b", "two", dir),
		c.mustStartWith(t, "a", "three", "")
	for _, p := range []*process{p, q, r} {
		p.Lease(10)
	}
	_ = p.Close()
	_ = q.Close()
	p, q, r = c.mustStartWith(t, "a", "one", dir), c.mustStartWith(t, "b", "two", dir),
		c.mustStartWith(t, "a", "three", "")
	p.Lease(10)
	q.Lease(10)
	r.refusesUnconfirmed(t)
	if ids := c.unconfirmed(); fmt.Sprint(ids) != "[a/three]" {
		t.Errorf("unconfirmed: %v", ids)
	}
	c.Check()
}

// Where a journal is required, an instance that starts without its own leases nothing
// until an operator confirms it: be there none, a new one, one of a process that was
// not confirmed either, or one that the last process of its name did not write.
func TestUnconfirmed(t *testing.T) {
	for name, start := range map[string]func(t *testing.T, c *cluster, own, other string) *process{
		"none": func(t *testing.T, c *cluster, _, _ string) *process {
			return c.mustStartWith(t, "a", "one", "")
		},
		"a new one": func(t *testing.T, c *cluster, _, other string) *process {
			return c.mustStartWith(t, "a", "one", other)
		},
		"another's": func(t *testing.T, c *cluster, own, _ string) *process {
			return c.mustStartWith(t, "a", "new", own)
		},
		"an old one": startOld,
		"a new one that was started twice": func(t *testing.T, c *cluster, _, other string) *process {
			for range 2 {
				p := c.mustStartWith(t, "a", "one", other)
				p.refusesUnconfirmed(t)
				_ = p.Close()
			}
			return c.mustStartWith(t, "a", "one", other)
		},
		"an old one that was started twice": func(t *testing.T, c *cluster, own, other string) *process {
			p := startOld(t, c, own, other)
			p.refusesUnconfirmed(t)
			_ = p.Close()
			return c.mustStartWith(t, "a", "one", own)
		},
		"a new one, stopped cleanly": func(t *testing.T, c *cluster, _, other string) *process {
			p := c.mustStartWith(t, "a", "one", other)
			p.refusesUnconfirmed(t)
			if err := p.Leave(bg); err != nil {
				t.Error(err)
			}
			_ = p.Close()
			return c.mustStartWith(t, "a", "one", other)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, "100 a=0-50 b=50-100")
			own, other := t.TempDir(), t.TempDir()
			p := c.mustStartWith(t, "a", "one", own)
			p.Lease(10)
			_ = p.Close()
			c.require(true)
			p = start(t, c, own, other)
			p.refusesUnconfirmed(t)
			p.run(t)
			p.refusesUnconfirmed(t)
			if ids := c.unconfirmed(); len(ids) != 1 {
				t.Errorf("unconfirmed: %v", ids)
			}
			ledgertest.WantKind(t, c.Admin.ConfirmInstance(bg, "a", "other", "ann"),
				allocator.NotFound, "march instance list")
			for range 2 {
				if err := c.Admin.ConfirmInstance(bg, p.Room(), p.Name(), "ann"); err != nil {
					t.Fatal(err)
				}
			}
			p.serve(t)
			p.Lease(10)
			if ids := c.unconfirmed(); len(ids) != 0 {
				t.Errorf("unconfirmed: %v", ids)
			}
			audits, _, err := c.Admin.Audits(bg, "", 10)
			if err != nil || len(audits) == 0 || audits[0].Action != "confirm instance" || audits[0].Actor != "ann" {
				t.Errorf("audit: %+v, %v", audits, err)
			}
			c.Check()
		})
	}
}

// startOld starts an instance with a journal that the last process of its name
// did not write.
func startOld(t *testing.T, c *cluster, own, _ string) *process {
	c.require(false)
	c.mustStartWith(t, "a", "one", "").Lease(10)
	c.require(true)
	return c.mustStartWith(t, "a", "one", own)
}

// Once it was confirmed and has leased, an instance has its journal.
func TestConfirmedOnce(t *testing.T) {
	c := newCluster(t, "100 a=0-50 b=50-100")
	c.start("b").Lease(10)
	c.require(true)
	dir := t.TempDir()
	p := c.mustStartWith(t, "a", "one", dir)
	p.refusesUnconfirmed(t)
	if err := c.Admin.ConfirmInstance(bg, "a", "one", "ann"); err != nil {
		t.Fatal(err)
	}
	p.serve(t)
	p.Lease(10)
	_ = p.Close()
	c.mustStartWith(t, "a", "one", dir).Lease(10)
	c.Check()
}

// An instance that runs, or starts, while no journal is required goes on once one is;
// and the flag of an instance holds whatever the cluster says.
func TestRequiredFromNowOn(t *testing.T) {
	c := newCluster(t, "100 a=0-50 b=50-100")
	p := c.mustStartWith(t, "a", "one", "")
	p.Lease(10)
	c.require(true)
	p.Ledger.Uncheck()
	p.Lease(10)
	q := c.mustStartWith(t, "a", "two", "")
	q.refusesUnconfirmed(t)
	c.require(false)
	q.hear()
	q.Lease(10)
	c.require(true)
	q.Ledger.Uncheck()
	q.Lease(10)
	c.require(false)
	r := c.mustStartWith(t, "a", "three", "", func(r *ledger.Registration) { r.RequireJournal = true })
	r.refusesUnconfirmed(t)
	c.Check()
}

// An operator may confirm an instance after a recover, before that instance has
// registered again under the new epoch. Its registration once wrote over the operator's
// word, and it leased nothing until it was confirmed again.
func TestConfirmedBeforeItRegistersAgain(t *testing.T) {
	c := newCluster(t, "100 a=0-50 b=50-100")
	q := c.start("b")
	q.Lease(10)
	c.require(true)
	p := c.start("a")
	p.refusesUnconfirmed(t)
	c.mustRecover([]*process{p, q})
	if err := c.Admin.ConfirmInstance(bg, "a", p.Name(), "ann"); err != nil {
		t.Fatal(err)
	}
	p.hear()
	if err := p.Beat(bg); err != nil {
		t.Fatal(err)
	}
	p.Lease(10)
	if ids := c.unconfirmed(); slices.Contains(ids, p.id()) {
		t.Errorf("unconfirmed: %v", ids)
	}
	c.Check()
}
