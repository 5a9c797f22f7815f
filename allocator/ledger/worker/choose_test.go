package worker_test

import (
	"testing"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/worker"
)

func TestChoice(t *testing.T) {
	const now = 1_000_000
	long, lately := int64(now-10_001), int64(now-10_000) // more than max_ahead ago, and not
	type known = []worker.Candidate
	last := func(n int64) int64 { return n - 1 }
	for name, test := range map[string]struct {
		caller  bool
		callers allocator.Range
		known   known
		unused  []int64
		want    int64
		none    bool
	}{
		"a lost answer's": {known: known{{Number: 1, Free: long, By: "a/i"},
			{Number: 2, Free: now + 9, By: "a/i", Mine: true}}, unused: []int64{3}, want: 2},
		"the one before": {known: known{{Number: 1, Free: long, By: "a/j"}, {Number: 2, Free: now, By: "a/i"}},
			unused: []int64{3}, want: 2},
		"the one that ended last of two before": {
			known: known{{Number: 1, Free: now - 5, By: "a/i"}, {Number: 2, Free: long, By: "a/i"}}, want: 1,
		},
		"the one before is not over": {known: known{{Number: 1, Free: now + 1, By: "a/i"},
			{Number: 2, Free: long, By: "a/j"}}, want: 2},
		"another room's of the same name": {known: known{{Number: 1, Free: lately, By: "b/i"}},
			unused: []int64{3}, want: 3},
		"one of those that ended long ago": {
			known: known{{Number: 1, Free: long, By: "a/j"}, {Number: 2, Free: long, By: "a/k"},
				{Number: 4, Free: lately, By: "a/l"}}, unused: []int64{3}, want: 2,
		},
		"never used, rather than one that ended lately": {known: known{{Number: 1, Free: lately, By: "a/j"}},
			unused: []int64{3}, want: 3},
		"one that ended lately": {known: known{{Number: 1, Free: now + 7, By: "a/j"},
			{Number: 2, Free: lately, By: "a/k"}}, want: 2},
		"the one that is free soonest": {known: known{{Number: 1, Free: now + 7, By: "a/j"},
			{Number: 2, Free: now + 5, By: "a/k"}}, want: 2},
		"none": {none: true},
		"not a caller's while there is another": {
			callers: allocator.Range{Lower: 2, Upper: 4}, known: known{{Number: 2, Free: long, By: "a/j"}},
			unused: []int64{1}, want: 1,
		},
		"a caller's where there is no other": {
			callers: allocator.Range{Lower: 2, Upper: 4},
			known:   known{{Number: 1, Free: now + 7, By: "a/j"}, {Number: 2, Free: long, By: "a/j"}}, want: 2,
		},
		"for a caller not what the instance had": {
			caller: true, known: known{{Number: 1, Free: lately, By: "a/i"},
				{Number: 2, Free: long, By: "a/j"}}, want: 2,
		},
	} {
		if got, ok := worker.Choose(now, test.caller, test.callers, test.known, test.unused, last); ok == test.none ||
			ok && got != test.want {
			t.Errorf("%s: got %d, %v; want %d", name, got, ok, test.want)
		}
	}
}

func TestLengths(t *testing.T) {
	cfg := worker.DefaultConfig()
	for _, test := range []struct {
		age, tick time.Duration
		pinned    bool
		want      time.Duration
	}{
		{0, time.Millisecond, false, 3 * time.Second},
		{0, time.Second, true, 3 * time.Second},
		{2 * time.Second, time.Millisecond, false, 4 * time.Second},
		{5 * time.Minute, time.Millisecond, false, 10 * time.Minute},
		{10 * time.Minute, time.Millisecond, false, 20 * time.Minute},
		{1000 * time.Hour, time.Millisecond, false, 20 * time.Minute},
		{10 * time.Second, time.Millisecond, true, 20 * time.Second},
		{time.Hour, time.Second, true, 30 * time.Second},
	} {
		if got := cfg.Length(test.age, test.tick, test.pinned); got != test.want {
			t.Errorf("age %v, tick %v, pinned %v: got %v, want %v", test.age, test.tick, test.pinned, got, test.want)
		}
	}
	// A process that renews at half of its window is as old as the reserve after a few windows.
	age, windows := time.Duration(0), 0
	for ; age < cfg.Reserve; windows++ {
		age += cfg.Length(age, time.Millisecond, false) / 2
	}
	if windows > 12 {
		t.Errorf("it takes %d windows until etcd may be away for the reserve", windows)
	}
}

// Windows end at a tick's end and have at least three ticks. None ends further after the clock
// than the longest window.
func TestEndsOfWindows(t *testing.T) {
	const longest = 20 * time.Minute
	for _, test := range []struct {
		now, least int64
		tick       time.Duration
		length     time.Duration
		from, end  int64
	}{
		{1234, 0, time.Millisecond, 3 * time.Second, 1234, 4234},
		{1234, 0, 10 * time.Millisecond, 3 * time.Second, 1230, 4240},
		{1234, 0, time.Second, 3 * time.Second, 1000, 5000},
		{1234, 1100, time.Second, 3 * time.Second, 1100, 5000}, // the owner before used up to there
		{1234, 1100, time.Second, time.Second, 1100, 5000},
		{1000, 0, time.Second, time.Second, 1000, 4000},
		{1234, 0, time.Second, longest, 1000, 1_201_000},
		{1000, 0, time.Second, longest, 1000, 1_201_000},
	} {
		from := worker.Begin(test.now, test.least, test.tick)
		end := worker.End(test.now, from, test.length, longest, test.tick)
		if from != test.from || end != test.end {
			t.Errorf("%+v: got [%d, %d)", test, from, end)
		}
	}
}

func TestPins(t *testing.T) {
	for _, test := range []struct {
		text, host string
		want       int64 // -1 for none, -2 for an error
	}{
		{"auto", "march-3", -1}, {"0", "", 0}, {"17", "march-3", 17}, {"ordinal", "march-3", 3},
		{"ordinal", "march-room-0012", 12},
		{"ordinal", "march", -2}, {"ordinal", "march-", -2}, {"ordinal", "7", -2}, {"ordinal", "march-3a", -2},
		{"-1", "", -2}, {"", "", -2},
		{"Auto", "", -2}, {"99999999999999999999", "", -2},
	} {
		pin, err := worker.ParsePin(test.text, test.host)
		n, set := pin.Number()
		switch {
		case test.want == -2:
			ledgertest.WantKind(t, err, allocator.Invalid, "worker")
		case err != nil || set != (test.want >= 0) || set && n != test.want:
			t.Errorf("%+v: got %d, %v, %v", test, n, set, err)
		}
	}
}

func TestParseCallers(t *testing.T) {
	for text, want := range map[string]int64{"half": 0, "0": -1, "1": 1, "2097152": 2097152} {
		if n, err := worker.ParseCallers(text); err != nil || n != want {
			t.Errorf("%s: %d, %v; want %d", text, n, err, want)
		}
	}
	for _, text := range []string{"", "Half", "-1", "1.5", "99999999999999999999"} {
		_, err := worker.ParseCallers(text)
		ledgertest.WantKind(t, err, allocator.Invalid, "client-workers")
	}
}
