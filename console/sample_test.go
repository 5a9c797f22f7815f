package console

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
)

// TestSampleRates: the rates of a room are the sums of what its instances remember. A second without a measurement has
// its place. The rate of an instance is the mean of half a minute: in one second it issued all or nothing of what
// callers take at once.
func TestSampleRates(t *testing.T) {
	t0 := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	alive := func(room allocator.Room, name allocator.Instance) instance {
		return instance{Instance: record.Instance{Room: room, Name: name}, Alive: true}
	}
	tell := func(rates ...float64) answer {
		return answer{is: &marchv1.GetInstanceResponse{Status: &marchv1.InstanceStatus{}, Rates: rates}}
	}
	both := []instance{alive("a", "x"), alive("a", "y")}
	s := sample{}
	for _, step := range []struct {
		second  int
		answers []answer
		want    []float64
	}{
		{0, []answer{tell(), tell()}, []float64{-1}},
		{1, []answer{tell(50), tell(7)}, []float64{-1, 57}},
		{2, []answer{tell(50, 0), {}}, []float64{-1, 57, 0}}, // y does not answer
		{3, []answer{tell(50, 0, 10), tell()}, []float64{-1, 57, 0, 10}},
		{4, []answer{{}, {}}, []float64{-1, 57, 0, 10, -1}}, // no answer
		// the console did not ask
		{7, []answer{{}, tell(20)}, []float64{-1, 57, 0, 10, -1, -1, -1, 20}},
		{9, []answer{{}, tell(20, 4, 5)}, []float64{-1, 57, 0, 10, -1, -1, -1, 20, 4, 5}},
	} {
		s = next(s, both, step.answers, t0.Add(time.Duration(step.second)*time.Second))
		if diff := cmp.Diff(step.want, s.rates["a"]); diff != "" {
			t.Fatalf("second %d (-want +got)\n%s", step.second, diff)
		}
	}
	s = next(s, both, []answer{{}, {}}, t0.Add(time.Hour))
	if n := len(s.rates["a"]); n != api.RatesKept {
		t.Errorf("%d rates are kept, want %d", n, api.RatesKept)
	}
	// Asked twice at once.
	s = next(s, both, []answer{tell(7), {}}, t0.Add(time.Hour+time.Millisecond))
	if n := len(s.rates["a"]); n != api.RatesKept || s.rates["a"][n-1] != 7 {
		t.Errorf("%d rates are kept, want %d and the last 7", n, api.RatesKept)
	}
	s = next(s, []instance{alive("new", "z")}, []answer{{}}, t0.Add(time.Hour+time.Second))
	for _, room := range []allocator.Room{"a", "new"} {
		if n := len(s.rates[room]); n != api.RatesKept {
			t.Errorf("room %s has %d rates, want %d: all are drawn over the same time", room, n, api.RatesKept)
		}
	}

	// A console that has just started shows the rates that the instances remember.
	s = sample{}
	for _, step := range []struct {
		second  int
		answers []answer
		want    []float64
	}{
		{0, []answer{tell(1, 2, 3), tell(10)}, []float64{1, 2, 13}},
		{1, []answer{tell(1, 2, 3, 5), tell(7)}, []float64{1, 2, 13, 12}},
		{4, []answer{tell(1, 2, 3, 5, 6, 7, 9), {}}, []float64{1, 2, 13, 12, 6, 7, 9}},
	} {
		s = next(s, both, step.answers, t0.Add(time.Duration(step.second)*time.Second))
		if diff := cmp.Diff(step.want, s.rates["a"]); diff != "" {
			t.Fatalf("second %d, with what instances remember (-want +got)\n%s", step.second, diff)
		}
	}
	if n := len(next(sample{}, both, []answer{tell(make([]float64, 5000)...), {}},
		t0).rates["a"]); n != api.RatesKept {
		t.Errorf("%d rates are kept of those that an instance reported, want %d", n, api.RatesKept)
	}
	for _, row := range []struct {
		rates []float64
		want  float64
	}{{nil, -1}, {[]float64{4}, 4}, {append([]float64{1e6, 60}, make([]float64, 29)...), 2}} {
		if got := (told{rates: row.rates}).rate(); got != row.want {
			t.Errorf("the rate of %v is %v, want %v", row.rates, got, row.want)
		}
	}
}

// The rate of a room names the instances that did not tell theirs, the silent ones, too: before, the sum of the others
// was shown as the room's rate.
func TestRateOfARoomNamesWhatIsUnknown(t *testing.T) {
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	x := instance{Instance: record.Instance{Room: "a", Name: "x"}, Alive: true}
	y, z := x, x
	y.Name, z.Name, z.Alive = "y", "z", false
	f := findings{instances: []instance{x, y, z}}
	if r := f.roomStatus("a", nil); r.Rate != nil || len(r.GetUnmeasured()) > 0 {
		t.Errorf("before the instances were asked: %v", r)
	}
	f.sample = next(sample{}, f.instances, []answer{
		{is: &marchv1.GetInstanceResponse{Status: &marchv1.InstanceStatus{}, Rates: []float64{40}}}, {}, {}}, at)
	if r := f.roomStatus("a", nil); r.GetRate() != 40 || !slices.Equal(r.GetUnmeasured(), []string{"a/y", "a/z"}) {
		t.Errorf("one of three answers: %v", r)
	}
	f.sample = next(sample{}, f.instances, []answer{{}, {}, {}}, at)
	if r := f.roomStatus("a", nil); r.Rate != nil || len(r.GetUnmeasured()) != 3 {
		t.Errorf("none answers: %v", r)
	}
}

// Before, the line of a room all of whose instances are silent, or gone, was drawn at 0: nobody knows that they issue
// nothing.
func TestRatesOfASilentRoomAreAGap(t *testing.T) {
	x := instance{Instance: record.Instance{Room: "a", Name: "x"}, Alive: true}
	one := answer{is: &marchv1.GetInstanceResponse{Status: &marchv1.InstanceStatus{}, Rates: []float64{40}}}
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	s := next(sample{}, []instance{x}, []answer{one}, at)
	x.Alive = false
	s = next(s, []instance{x}, []answer{{}}, at.Add(time.Second))
	s = next(s, nil, nil, at.Add(2*time.Second))
	if diff := cmp.Diff([]float64{40, -1, -1}, s.rates["a"]); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}
