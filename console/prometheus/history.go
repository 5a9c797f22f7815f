package prometheus

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/march-id/march/allocator"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/console/history"
	"github.com/march-id/march/internal/minutes"
)

const (
	// Most is how many minutes a history may have: 30 days.
	Most = 30 * 24 * 60
	// leastStep and mostStep bound the minutes of a point.
	leastStep, mostStep = 60, 24 * 60
	// mostPoints bounds the points of a history.
	mostPoints = 200
	// leastOutage is how long etcd must not have answered to be counted as away: the same as
	// in the alert MarchEtcdAway.
	leastOutage = 30 * time.Second
	// atOnce is how many queries are asked at once.
	atOnce = 3
)

// Check checks how many minutes a caller asks for, and how many minutes each point is to
// cover. Its error is Invalid.
func Check(back, step int32) error {
	switch {
	case back <= minutes.Kept || back > Most:
		return allocator.Errorf(allocator.Invalid,
			"minutes: %d; allowed of a Prometheus: %d to %d", back, minutes.Kept+1, Most)
	case step < leastStep || step > mostStep || back%step != 0:
		return allocator.Errorf(allocator.Invalid,
			"step: %d; allowed beyond 24 hours: %d to %d, and a divisor of minutes (%d)",
			step, leastStep, mostStep, back)
	case back/step > mostPoints:
		return allocator.Errorf(allocator.Invalid,
			"step: %d; allowed for %d minutes: %d or more, so that there are %d points at most", step, back,
			(back+mostPoints-1)/mostPoints, mostPoints)
	}
	return nil
}

// SpanOf returns the points of the last minutes, which Check has checked. Each is whole: the
// last one ended before now, at a multiple of step minutes since 1970.
func SpanOf(now time.Time, back, step int32) history.Span {
	each := int64(step) * 60
	last := now.Unix() / each * each
	return history.Span{First: time.Unix(last-int64(back)*60, 0), Step: int64(step), Points: int(back / step)}
}

// questions are the queries of a history. In each, ROOMS is the selector of the rooms' series,
// POINT the length of a point, WHOLE that of the history, and MOST is minutes.MaxTags.
var questions = []struct {
	query string
	to    func(*marchv1.HistorySeries) []float32
	tags  bool // a series for each room and tag
}{
	{query: `sum by (room) (rate(march_chain_issued_ids_total{ROOMS}[POINT]) or rate(march_time_issued_ids_total{ROOMS}[POINT]))`, to: (*marchv1.HistorySeries).GetRates},
	{query: `min by (room) (` + reserves + `)`, to: (*marchv1.HistorySeries).GetReserves},
	{query: `histogram_quantile(0.99, sum by (room, le) (rate(march_etcd_transaction_seconds_bucket{ROOMS}[POINT])))`,
		to: (*marchv1.HistorySeries).GetEtcdLatencies},
	{query: `sum by (room) (` + failedCalls + ` or ` + failedRequests + `)`, to: (*marchv1.HistorySeries).GetFailed},
	{query: `max by (room) (max_over_time(march_etcd_away_seconds{ROOMS}[POINT]))`,
		to: (*marchv1.HistorySeries).GetEtcdAway},
	{query: `sum by (room, tag) (rate(march_chain_issued_ids_total{ROOMS,tag!="(other)"}[POINT])) and on (tag) ` +
		busiest, to: (*marchv1.HistorySeries).GetRates, tags: true},
	{query: `min by (room, tag) (` + reserves + `) and on (tag) ` + busiest,
		to: (*marchv1.HistorySeries).GetReserves, tags: true},
}

const (
	// reserves are the least reserves of the tags in use.
	reserves = `min_over_time(march_chain_reserve_seconds{ROOMS}[POINT]) and on (instance, room, tag) rate(march_chain_requests_total{ROOMS}[POINT]) > 0`
	// busiest are the tags that issued the most in the whole time.
	busiest = `topk(MOST, sum by (tag) (increase(march_chain_issued_ids_total{ROOMS,tag!="(other)"}[WHOLE] @ end())) > 0)`
	// failedCalls and failedRequests are those of the alert MarchErrorRate.
	failedCalls = `increase(march_requests_total{ROOMS,method=~"march.v1.IDService/(Next|NextBatch|NextMany|Lease|Stream)",` +
		`code=~"Unavailable|Internal|Unknown|DeadlineExceeded|FailedPrecondition|Aborted|DataLoss"}[POINT])`
	failedRequests = `increase(march_http_requests_total{ROOMS,route=~".*/v1/.*",class="5xx"}[POINT])`
)

// History returns the history of each room that Prometheus knows. The latency of etcd is what
// 99 of 100 transactions stayed below, and EtcdAway the longest time without an answer, from
// leastOutage on. The failed calls of tags are unknown. Its error is Unavailable.
func (c *Client) History(ctx context.Context, span history.Span) ([]history.Told, error) {
	ctx, cancel := context.WithTimeout(ctx, Within)
	defer cancel()
	select {
	case c.turn <- struct{}{}:
		defer func() { <-c.turn }()
	case <-ctx.Done():
		return nil, allocator.Errorf(allocator.Unavailable,
			"prometheus: another page still waits for %s; try again", c.cfg.URL)
	}
	now := time.Now()
	if k, ok := c.kept[span]; ok && now.Sub(k.at) < keepFor {
		return k.told, nil
	}
	found := make([][]series, len(questions))
	asking, ctx := errgroup.WithContext(ctx)
	asking.SetLimit(atOnce)
	rooms := `room!=""`
	if c.cfg.Cluster != "" {
		rooms += `,cluster=` + strconv.Quote(c.cfg.Cluster)
	}
	words := strings.NewReplacer("ROOMS", rooms, "POINT", inMinutes(span.Step), "WHOLE",
		inMinutes(span.Step*int64(span.Points)), "MOST", strconv.Itoa(minutes.MaxTags))
	for i, q := range questions {
		asking.Go(func() (err error) {
			found[i], err = c.ask(ctx, words.Replace(q.query), span)
			return err
		})
	}
	if err := asking.Wait(); err != nil {
		return nil, err
	}
	told := together(span, found)
	maps.DeleteFunc(c.kept, func(_ history.Span, k kept) bool { return now.Sub(k.at) >= keepFor })
	if len(c.kept) < mostKept {
		c.kept[span] = kept{told: told, at: now}
	}
	return told, nil
}

// inMinutes writes a duration for queries.
func inMinutes(n int64) string { return strconv.FormatInt(n, 10) + "m" }

// together puts the answers to all questions together, by room.
func together(span history.Span, found [][]series) (told []history.Told) {
	type room struct {
		all  *marchv1.HistorySeries
		tags map[string]*marchv1.HistorySeries
	}
	rooms := make(map[string]*room)
	for i, list := range found {
		for _, s := range list {
			r := rooms[s.Metric.Room]
			if r == nil {
				r = &room{all: blank(span, ""), tags: make(map[string]*marchv1.HistorySeries)}
				rooms[s.Metric.Room] = r
			}
			to := r.all
			if questions[i].tags {
				if r.tags[s.Metric.Tag] == nil {
					r.tags[s.Metric.Tag] = blank(span, s.Metric.Tag)
				}
				to = r.tags[s.Metric.Tag]
			}
			fill(questions[i].to(to), s.Values, span)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(rooms)) {
		r := rooms[name]
		for i, rate := range r.all.GetRates() {
			if rate >= 0 && r.all.GetFailed()[i] < 0 { // a code has no series before its first call
				r.all.Failed[i] = 0
			}
			if r.all.GetEtcdAway()[i] < float32(leastOutage.Seconds()) {
				r.all.EtcdAway[i] = min(r.all.GetEtcdAway()[i], 0)
			}
		}
		t := history.Told{Room: name, Answer: &marchv1.GetInstanceHistoryResponse{First: timestamppb.New(span.First),
			All: r.all}}
		for _, tag := range slices.Sorted(maps.Keys(r.tags)) {
			t.Answer.Tags = append(t.Answer.Tags, r.tags[tag])
		}
		told = append(told, t)
	}
	return told
}

// blank returns a series of which nothing is known.
func blank(span history.Span, tag string) *marchv1.HistorySeries {
	none := func() []float32 { return slices.Repeat([]float32{minutes.Unknown}, span.Points) }
	s := &marchv1.HistorySeries{Tag: tag, Rates: none(), Reserves: none()}
	if tag == "" {
		s.Failed, s.EtcdLatencies, s.EtcdAway = none(), none(), none()
	}
	return s
}

// fill writes samples to the points at whose ends they are. Values that are no numbers are left
// out.
func fill(points []float32, samples []sample, span history.Span) {
	step := float64(span.Step * 60)
	for _, s := range samples {
		i := int((s.at-float64(span.First.Unix()))/step+.5) - 1
		if i >= 0 && i < len(points) && s.value >= 0 && s.value <= 1e30 {
			points[i] = float32(s.value)
		}
	}
}
