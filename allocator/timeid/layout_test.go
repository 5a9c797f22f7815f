package timeid_test

import (
	"math/big"
	"math/bits"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/timeid"
)

// ms returns a time of RFC 3339 in Unix ms.
func ms(t testing.TB, s string) int64 {
	t.Helper()
	at, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		t.Fatal(err)
	}
	return at.UnixMilli()
}

func preset(t testing.TB, name string) timeid.Preset {
	t.Helper()
	p, err := timeid.PresetNamed(name)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestGolden compares the presets with IDs that other systems made, or that their code would
// make.
func TestGolden(t *testing.T) {
	for _, test := range []struct {
		preset, time     string
		worker, sequence int64
		id               int64
	}{
		// CosId's friendly form 20210623131730192-1-0, at +08:00 and in UTC.
		{"cosid", "2021-06-23T05:17:30.192Z", 1, 0, 198064472869310464},
		{"cosid", "2021-06-23T13:17:30.192Z", 1, 0, 198185268824510464},
		// Leaf's documentation of /decodeSnowflakeId.
		{"leaf", "2019-09-06T01:35:00.834Z", 39, 3448, 1169786042799259000},
		// The epoch of each preset, and the largest parts.
		{"leaf", "2010-11-04T01:42:54.657Z", 0, 0, 0},
		{"cosid", "2019-12-24T16:00:00Z", 0, 0, 0},
		{"cosid-second", "2019-12-24T16:00:00Z", 0, 1, 1},
		{"cosid-js", "2019-12-24T16:00:00Z", 1, 0, 1 << 9},
		{"cosid-js-second", "2019-12-24T16:00:00Z", 1, 0, 1 << 19},
		{"uid-generator", "2016-05-19T16:00:01Z", 0, 0, 1 << 35},
		{"cosid", "2089-08-30T07:47:35.551Z", 1023, 4095, 1<<63 - 1},
		{"cosid-second", "2088-01-11T19:14:07Z", 1023, 1<<22 - 1, 1<<63 - 1},
		{"cosid-js", "2089-08-30T07:47:35.551Z", 7, 511, 1<<53 - 1},
		{"cosid-js-second", "2088-01-11T19:14:07Z", 7, 1<<19 - 1, 1<<53 - 1},
		{"uid-generator", "2024-11-20T13:24:15Z", 1<<22 - 1, 1<<13 - 1, 1<<63 - 1},
	} {
		l := preset(t, test.preset).Layout
		parts := timeid.Parts{Time: ms(t, test.time), Worker: test.worker, Sequence: test.sequence}
		if id, err := l.Compose(parts); id != test.id || err != nil {
			t.Errorf("%s: Compose(%s, %d, %d) = %d, %v; want %d", test.preset, test.time, test.worker,
				test.sequence, id, err, test.id)
		}
		if got, err := l.Decompose(test.id); got != parts || err != nil {
			t.Errorf("%s: Decompose(%d) = %v, %v; want %v", test.preset, test.id, got, err, parts)
		}
	}
}

// TestPresets compares the constants with the other systems' own.
func TestPresets(t *testing.T) {
	for _, want := range []struct {
		name, bits string
		unit       time.Duration
		epoch      int64
		end        string
		sequence   timeid.Sequence
	}{
		{"leaf", "41/10/12", time.Millisecond, 1288834974657, "2080-07-10T17:30:30.209Z", timeid.Random},
		{"cosid", "41/10/12", time.Millisecond, 1577203200000, "2089-08-30T07:47:35.552Z", timeid.Carry},
		{"cosid-second", "31/10/22", time.Second, 1577203200000, "2088-01-11T19:14:08Z", timeid.Carry},
		{"cosid-js", "41/3/9", time.Millisecond, 1577203200000, "2089-08-30T07:47:35.552Z", timeid.Carry},
		{"cosid-js-second", "31/3/19", time.Second, 1577203200000, "2088-01-11T19:14:08Z", timeid.Carry},
		{"uid-generator", "28/22/13", time.Second, 1463673600000, "2024-11-20T13:24:16Z", timeid.Reset},
		{"cosid-string", "44/20/16", time.Millisecond, 0, "2527-06-23T06:20:44.416Z", timeid.Carry},
	} {
		p := preset(t, want.name)
		l := p.Layout
		if l.BitsString() != want.bits || l.Unit != want.unit || l.Epoch != want.epoch || l.End() != ms(t, want.end) ||
			l.Order != timeid.WorkerMiddle || p.Sequence != want.sequence {
			t.Errorf("%s: %+v until %s, want %+v", want.name, p, time.UnixMilli(l.End()).UTC(), want)
		}
	}
	for _, name := range timeid.PresetNames() {
		p := preset(t, name)
		if err := p.Layout.Validate(); err != nil {
			t.Errorf("%s: %v", p.Name, err)
		}
		if p.Note == "" {
			t.Errorf("%s has no note", p.Name)
		}
	}
	const names = "leaf, cosid, cosid-second, cosid-js, cosid-js-second, uid-generator, cosid-string"
	if got := strings.Join(timeid.PresetNames(), ", "); got != names {
		t.Errorf("presets: %s, want %s", got, names)
	}
	for _, name := range []string{"nosuch", "help", "", "Leaf"} {
		_, err := timeid.PresetNamed(name)
		wantInvalid(t, err, "preset", names)
	}
}

// wantInvalid checks that the error is Invalid, and that its message begins with the field and
// contains all the texts.
func wantInvalid(t *testing.T, err error, field string, texts ...string) {
	t.Helper()
	if allocator.KindOf(err) != allocator.Invalid || !strings.HasPrefix(err.Error(), field+":") ||
		!strings.Contains(err.Error(), "allowed: ") {
		t.Errorf("%v; want an Invalid error of %s that says what is allowed", err, field)
		return
	}
	for _, text := range texts {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("%v; want it to say %q", err, text)
		}
	}
}

func TestValidate(t *testing.T) {
	for _, test := range []struct {
		field  string
		change func(l *timeid.Layout)
		says   string
	}{
		{"unit", func(l *timeid.Layout) { l.Unit = 0 }, "0s"},
		{"unit", func(l *timeid.Layout) { l.Unit = 2 * time.Millisecond }, "1ms, 10ms, 1s"},
		{"epoch", func(l *timeid.Layout) { l.Epoch = -1 }, "-1 ms"},
		{"epoch", func(l *timeid.Layout) { l.Epoch = timeid.LatestEpoch + 1 }, "253402300800000 ms"},
		{"epoch", func(l *timeid.Layout) {
			l.Unit, l.Epoch = time.Second, 1577203200001
		}, "multiples of the unit (1s)"},
		{"time bits", func(l *timeid.Layout) { l.TimeBits = 0 }, "0; allowed: 1 to 62"},
		{"time bits", func(l *timeid.Layout) { l.TimeBits = 63 }, "63; allowed: 1 to 62"},
		{"time bits", func(l *timeid.Layout) { l.TimeBits, l.Unit = 60, 10*time.Millisecond }, "60; allowed: 1 to 59"},
		{"time bits", func(l *timeid.Layout) { l.TimeBits, l.Unit = 54, time.Second }, "54; allowed: 1 to 53"},
		{"worker bits", func(l *timeid.Layout) { l.WorkerBits = -1 }, "-1"},
		{"worker bits", func(l *timeid.Layout) { l.WorkerBits = 1 << 40 }, "0 to 62"},
		{"sequence bits", func(l *timeid.Layout) { l.SequenceBits = -1 }, "-1"},
		{"sequence bits", func(l *timeid.Layout) { l.SequenceBits = 63 }, "0 to 62"},
		{"bits", func(l *timeid.Layout) { l.SequenceBits = 13 }, "41/10/13 is 64 together"},
		{"order", func(l *timeid.Layout) { l.Order = 2 }, "worker-middle, worker-last"},
	} {
		l := preset(t, "cosid").Layout
		test.change(&l)
		wantInvalid(t, l.Validate(), test.field, test.says)
	}
	for range 1000 {
		if l := randomLayout(rand.IntN); l.Validate() != nil {
			t.Errorf("%+v: %v", l, l.Validate())
		}
	}
}

// randomLayout returns any valid layout, sometimes with each of its extremes.
func randomLayout(intN func(int) int) timeid.Layout {
	l := timeid.Layout{Unit: []time.Duration{time.Millisecond, 10 * time.Millisecond, time.Second}[intN(3)],
		Order: timeid.Order(intN(2))}
	most := map[time.Duration]int{time.Millisecond: 62, 10 * time.Millisecond: 59, time.Second: 53}[l.Unit]
	l.TimeBits = 1 + intN(most)
	l.WorkerBits = intN(63 - l.TimeBits + 1)
	l.SequenceBits = intN(63 - l.TimeBits - l.WorkerBits + 1)
	if intN(2) == 0 { // all 63
		l.SequenceBits = 63 - l.TimeBits - l.WorkerBits
	}
	l.Epoch = int64(intN(1<<41)) / 1000 * 1000
	return l
}

// slowCompose is the formula by plain arithmetic.
func slowCompose(l timeid.Layout, p timeid.Parts) *big.Int {
	power := func(bits int) *big.Int { return new(big.Int).Exp(big.NewInt(2), big.NewInt(int64(bits)), nil) }
	id := new(big.Int).Sub(big.NewInt(p.Time), big.NewInt(l.Epoch))
	id.Div(id, big.NewInt(l.Unit.Milliseconds()))
	digits := []struct {
		value int64
		bits  int
	}{{p.Worker, l.WorkerBits}, {p.Sequence, l.SequenceBits}}
	if l.Order == timeid.WorkerLast {
		digits[0], digits[1] = digits[1], digits[0]
	}
	for _, d := range digits {
		id.Mul(id, power(d.bits)).Add(id, big.NewInt(d.value))
	}
	return id
}

// TestComposeDecompose compares Compose with the slow formula, over random layouts.
func TestComposeDecompose(t *testing.T) {
	below := func(n int64) int64 {
		switch rand.IntN(4) {
		case 0:
			return 0
		case 1:
			return n - 1
		}
		return rand.Int64N(n)
	}
	for range 20_000 {
		l := randomLayout(rand.IntN)
		p := timeid.Parts{Time: l.Epoch + below(l.End()-l.Epoch), Worker: below(l.Workers()),
			Sequence: below(l.PerTick())}
		id, err := l.Compose(p)
		if err != nil {
			t.Fatalf("%+v: Compose(%+v): %v", l, p, err)
		}
		if want := slowCompose(l, p); want.Cmp(big.NewInt(id)) != 0 {
			t.Fatalf("%+v: Compose(%+v) = %d, want %v", l, p, id, want)
		}
		p.Time -= (p.Time - l.Epoch) % l.Unit.Milliseconds()
		if got, err := l.Decompose(id); got != p || err != nil {
			t.Fatalf("%+v: Decompose(%d) = %+v, %v; want %+v", l, id, got, err, p)
		}
		if l.Order == timeid.WorkerLast && id%l.Workers() != p.Worker {
			t.Fatalf("%+v: %d mod %d is not worker %d", l, id, l.Workers(), p.Worker)
		}
	}
}

// TestForeign checks that parts which do not fit are refused by the name of the field.
func TestForeign(t *testing.T) {
	l := preset(t, "cosid-js").Layout
	now := ms(t, "2026-01-01T00:00:00Z")
	for _, p := range []struct {
		field string
		parts timeid.Parts
	}{
		{"time", timeid.Parts{Time: l.Epoch - 1}},
		{"time", timeid.Parts{Time: l.End()}},
		{"worker", timeid.Parts{Time: now, Worker: -1}},
		{"worker", timeid.Parts{Time: now, Worker: 8}},
		{"sequence", timeid.Parts{Time: now, Sequence: -1}},
		{"sequence", timeid.Parts{Time: now, Sequence: 512}},
	} {
		_, err := l.Compose(p.parts)
		wantInvalid(t, err, p.field)
	}
	_, err := l.Decompose(-1)
	wantInvalid(t, err, "id", "-1 is negative")
	_, err = l.Decompose(1 << 53)
	wantInvalid(t, err, "id", "has 54 bits", "0 to 9007199254740991, 53 bits (41/3/9)")
	if _, err = l.Decompose(1<<53 - 1); err != nil {
		t.Error(err)
	}
	_, err = l.DecomposeBefore(1<<53-1, now)
	wantInvalid(t, err, "time", "in the future")
	l.Epoch = now + 1
	_, err = l.DecomposeBefore(1, now)
	wantInvalid(t, err, "epoch", "2026-01-01T00:00:00.001Z is in the future")
	if p, err := l.DecomposeBefore(0, now+1); err != nil || p != (timeid.Parts{Time: now + 1}) {
		t.Error(p, err)
	}
}

func TestParse(t *testing.T) {
	if tb, w, s, err := timeid.ParseBits("41/10/12"); tb != 41 || w != 10 || s != 12 || err != nil {
		t.Error(tb, w, s, err)
	}
	for _, bad := range []string{"", "41", "41/10", "41/10/12/0", "41/10/", "a/b/c", "+41/10/12", "041/10/12",
		"41/-1/12", "41/10/64", " 41/10/12", "41//12", strings.Repeat("1", 200)} {
		_, _, _, err := timeid.ParseBits(bad)
		wantInvalid(t, err, "bits", "41/10/12")
		if len(err.Error()) > 200 {
			t.Errorf("%d bytes of error", len(err.Error()))
		}
	}
	for s, want := range map[string]int64{
		"2019-12-24T16:00:00Z": 1577203200000, "1577203200000": 1577203200000, "0": 0,
		"2019-12-25T00:00:00+08:00": 1577203200000,
		"2010-11-04T01:42:54.657Z":  1288834974657, "1970-01-01T00:00:00Z": 0,
	} {
		if got, err := timeid.ParseEpoch(s); got != want || err != nil {
			t.Errorf("ParseEpoch(%q) = %d, %v; want %d", s, got, err, want)
		}
	}
	for _, bad := range []string{"", "-1", "1e3", "2019-12-24", "2019-12-24 16:00:00", "1969-12-31T23:59:59Z",
		"2019-12-24T16:00:00.0001Z", "253402300800000", "99999999999999999999"} {
		_, err := timeid.ParseEpoch(bad)
		wantInvalid(t, err, "epoch")
	}
	for s, want := range map[string]time.Duration{"1ms": time.Millisecond,
		"10ms": 10 * time.Millisecond, "1s": time.Second} {
		if got, err := timeid.ParseUnit(s); got != want || err != nil {
			t.Errorf("ParseUnit(%q) = %v, %v", s, got, err)
		}
	}
	_, err := timeid.ParseUnit("2ms")
	wantInvalid(t, err, "unit", `"2ms"; allowed: 1ms, 10ms, 1s`)
	for _, o := range []timeid.Order{timeid.WorkerMiddle, timeid.WorkerLast} {
		if got, err := timeid.ParseOrder(o.String()); got != o || err != nil {
			t.Errorf("%v: %v, %v", o, got, err)
		}
	}
	for _, s := range []timeid.Sequence{timeid.Reset, timeid.Carry, timeid.Random} {
		if got, err := timeid.ParseSequence(s.String()); got != s || err != nil {
			t.Errorf("%v: %v, %v", s, got, err)
		}
	}
	for _, r := range []timeid.Rollback{timeid.Wait, timeid.Offset, timeid.Fail} {
		if got, err := timeid.ParseRollback(r.String()); got != r || err != nil {
			t.Errorf("%v: %v, %v", r, got, err)
		}
	}
	_, err = timeid.ParseOrder("last")
	wantInvalid(t, err, "order", "worker-middle, worker-last")
	_, err = timeid.ParseSequence("even")
	wantInvalid(t, err, "sequence", "reset, carry, random")
	_, err = timeid.ParseRollback("")
	wantInvalid(t, err, "rollback", "wait, offset, fail")
	if got := timeid.Order(9).String() + timeid.Sequence(9).String() + timeid.Rollback(9).String(); got !=
		"order-9sequence-9rollback-9" {
		t.Error(got)
	}
}

func FuzzDecompose(f *testing.F) {
	f.Add(int64(198064472869310464), 41, 10, 12, int64(1577203200000), uint8(0), false)
	f.Add(int64(1<<53), 41, 3, 9, int64(1577203200000), uint8(2), true)
	f.Add(int64(-1), 62, 0, 1, int64(0), uint8(1), false)
	f.Fuzz(func(t *testing.T, id int64, tb, w, s int, epoch int64, unit uint8, last bool) {
		l := timeid.Layout{TimeBits: tb, WorkerBits: w, SequenceBits: s, Epoch: epoch,
			Unit: []time.Duration{time.Millisecond, 10 * time.Millisecond, time.Second}[unit%3]}
		if last {
			l.Order = timeid.WorkerLast
		}
		if l.Validate() != nil {
			return
		}
		p, err := l.Decompose(id)
		if fits := id >= 0 && bits.Len64(uint64(id)) <= tb+w+s; fits != (err == nil) {
			t.Fatalf("%+v: Decompose(%d): %v", l, id, err)
		}
		if err != nil {
			return
		}
		if again, err := l.Compose(p); again != id || err != nil {
			t.Fatalf("%+v: Compose(%+v) = %d, %v; want %d", l, p, again, err, id)
		}
	})
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"41/10/12", "1577203200000", "2019-12-24T16:00:00Z", "10ms", "0/0/0", "63/0/0"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if tb, w, seq, err := timeid.ParseBits(s); err == nil {
			if l := (timeid.Layout{TimeBits: tb, WorkerBits: w, SequenceBits: seq}); l.BitsString() != s {
				t.Errorf("ParseBits(%q) is %s", s, l.BitsString())
			}
		} else {
			wantInvalid(t, err, "bits")
		}
		if epoch, err := timeid.ParseEpoch(s); err == nil {
			if again, err := timeid.ParseEpoch(time.UnixMilli(epoch).UTC().Format(timeid.Format)); again != epoch ||
				err != nil {
				t.Errorf("ParseEpoch(%q) is %d, and that %d, %v", s, epoch, again, err)
			}
		}
		if _, err := timeid.ParseUnit(s); err != nil {
			wantInvalid(t, err, "unit")
		}
	})
}
