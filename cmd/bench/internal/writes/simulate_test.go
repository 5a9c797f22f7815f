package writes

import (
	"context"
	"encoding/json"
	"flag"
	"os"
	"testing"
	"testing/synctest"
	"time"
)

var (
	specFlag    = flag.String("spec", "", "simulate this Spec, in JSON: what Run does")
	outcomeFlag = flag.String("outcome", "", "with -spec, the file to write the Outcome to")
)

// simulate simulates a cluster in a bubble.
func simulate(t *testing.T, spec Spec) (o Outcome) {
	if err := spec.Validate(); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, spec)
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- c.run(ctx) }()
		defer func() {
			stop()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}()
		// A short time after the full second, so that the callers of that second have called.
		time.Sleep(starting + spec.Spread + spec.Settle + time.Second/callsPerSecond/slots/2)
		before, err := c.issued()
		if err != nil {
			t.Error(err)
			return
		}
		time.Sleep(spec.Count)
		after, err := c.issued()
		if want := int64(spec.Pairs()) * spec.Rate * int64(spec.Count/time.Second); err != nil || after-before != want {
			t.Errorf("%d IDs were issued while it was counted, want %d: %v", after-before, want, err)
			return
		}
		if spec.Move > 0 {
			version, err := c.move(ctx)
			if err != nil {
				t.Error(err)
				return
			}
			time.Sleep(spec.Move)
			if err := c.served(ctx, version); err != nil {
				t.Error(err)
			}
		}
		c.counted.Lock()
		defer c.counted.Unlock()
		o = Outcome{Steady: int((starting + spec.Spread + spec.Settle) / time.Second), Series: make(Series)}
		for kind, counts := range c.counted.series {
			o.Series[kind] = append([]Count{}, counts...)
		}
	})
	return o
}

// A small cluster makes the necessary writes, and no more.
func TestSmall(t *testing.T) {
	spec := Spec{
		Rooms: 3, Instances: 6, Tags: 40, Rate: 10, Reserve: 2 * time.Minute,
		Spread: 116 * time.Second, Settle: 2 * time.Minute, Count: 10 * time.Minute, Move: 10 * time.Minute,
	}
	o := simulate(t, spec)
	const seconds = 600
	end := o.Steady + seconds
	steady, moved := o.Series.Sum(o.Steady, end), o.Series.Sum(end, end+60)
	near := func(what string, is int64, want float64) {
		if float64(is) < 0.95*want || float64(is) > 1.05*want {
			t.Errorf("%s: %d, want about %.0f", what, is, want)
		}
	}
	// A step lasts for the reserve, less a part of 32.
	leases := float64(spec.Pairs()) / (spec.Reserve.Seconds() * 31 / 32)
	near("leases", steady["marks"].Writes, leases*seconds)
	near("heartbeats", steady["alive"].Writes, float64(spec.Instances)*seconds/5)
	// A beat is written every 10 s, or when the log has doubled. How many instances that probe at
	// the same time try to write it, is the scheduler's choice: each at most once.
	if n, most := steady["beat"].Writes, int64(spec.Instances)*seconds/10; n < seconds/10-2 || n > most {
		t.Errorf("beats: %d, want %d to %d", n, seconds/10, most)
	}
	if len(steady) != 3 {
		t.Errorf("%v is written while nothing changes, want three kinds", steady)
	}
	// Each tag of the room that lost residues is leased once more, and each instance reports
	// its new layout.
	near("leases in the minute after a move", moved["marks"].Writes, leases*60+float64(spec.Tags))
	if got := moved["rooms"].Writes; got != int64(spec.Instances) {
		t.Errorf("%d registrations after a move, want %d", got, spec.Instances)
	}
	at := o.Series.Busiest(end+30, end+seconds, 60, nil)
	if got := o.Series.Sum(at, at+60)["marks"].Writes; float64(got) > 1.25*leases*60 {
		t.Errorf("%d leases in a minute after a move: tags that were renewed together are refilled together", got)
	}
}

// TestSpec simulates the cluster that the flags describe.
func TestSpec(t *testing.T) {
	if *specFlag == "" {
		return // TestSmall simulates a cluster of its own
	}
	var spec Spec
	if err := json.Unmarshal([]byte(*specFlag), &spec); err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(simulate(t, spec))
	if err == nil {
		err = os.WriteFile(*outcomeFlag, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}
