package console

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	marchv1 "github.com/march-id/march/api/march/v1"
)

func TestRoomUse(t *testing.T) {
	now := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	chain := func(tag string, ago time.Duration, issued int64) *marchv1.Chain {
		return &marchv1.Chain{Tag: tag, Used: timestamppb.New(now.Add(-ago)), Issued: issued, Peak: 2}
	}
	told := []useReport{
		{Instance: "a/one", Answered: true, Rates: []float64{3, 0, 0}, Chains: []*marchv1.Chain{
			chain("order", 5*time.Minute, 10), chain("old", 2*time.Hour, 10), chain("warm", time.Second, 0),
		}},
		{Instance: "a/two", Answered: true, Rates: []float64{0, 0, 0},
			Chains: []*marchv1.Chain{chain("order", time.Minute, 5), chain("item", 2*time.Minute, 1)}},
	}
	u := roomUse("a", told, now)
	if u.GetTags() != 2 || u.GetRate() != 1 || u.GetIdle().AsDuration() != 2*time.Second {
		t.Errorf("got %v", u)
	}
	if o := u.GetLatest()[0]; o.GetTag() != "order" || o.GetIssued() != 15 || o.GetPeak() != 4 ||
		!o.GetLast().AsTime().Equal(now.Add(-time.Minute)) {
		t.Errorf("order: %v", o)
	}
	told[0].Rates = []float64{0, 0, 0} // the tags decide
	if u := roomUse("a", told, now); u.GetIdle().AsDuration() != time.Minute {
		t.Errorf("idle for %v", u.GetIdle().AsDuration())
	}
	told[1].Answered = false // unknown is not idle
	if u := roomUse("a", told, now); u.GetIdle() != nil || len(u.GetSilent()) != 1 || u.GetSilent()[0] != "a/two" {
		t.Errorf("got %v", u)
	}
	if u := roomUse("a", nil, now); u.GetIdle().AsDuration() != useWindow || u.GetTags() != 0 {
		t.Errorf("without instances: %v", u)
	}
}
