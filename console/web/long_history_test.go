package web_test

import (
	"context"
	"regexp"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/march-id/march/allocator"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/console/web"
)

// longPast is a console with a fixed history, of longer times from a Prometheus too.
type longPast struct {
	past
	down error // why Prometheus does not answer
	none bool  // it knows nothing
}

func (p *longPast) GetHistory(ctx context.Context, r *marchv1.GetHistoryRequest) (*marchv1.GetHistoryResponse, error) {
	if r.GetMinutes() <= 24*60 {
		return p.past.GetHistory(ctx, r)
	}
	if p.down != nil {
		return nil, p.down
	}
	answer, err := p.past.GetHistory(ctx, r)
	if err != nil {
		return nil, err
	}
	answer.Silent = nil
	unknown := func(values []float32) {
		for i := range values {
			values[i] = -1
		}
	}
	for _, room := range answer.GetRooms() {
		for _, tag := range room.GetTags() {
			tag.Failed = nil
		}
		if s := room.GetAll(); p.none {
			unknown(s.GetRates())
			unknown(s.GetReserves())
			unknown(s.GetEtcdLatencies())
			unknown(s.GetFailed())
			unknown(s.GetEtcdAway())
			answer.Tags = nil
		}
	}
	return answer, nil
}

// GetTag returns a tag with a period, which has not begun.
func (p *longPast) GetTag(_ context.Context, r *marchv1.GetTagRequest) (*marchv1.GetTagResponse, error) {
	start, limit := int64(1), int64(allocator.MaxID)
	return &marchv1.GetTagResponse{Tag: &marchv1.Tag{
		Name: r.GetName(), Start: &start, Limit: &limit, Created: timestamppb.Now(),
		Reserve: durationpb.New(time.Minute),
		Period: &marchv1.Period{Unit: marchv1.PeriodUnit_PERIOD_UNIT_DAY, Digits: 9, TimeZone: "UTC",
			Current: "2030-01-02", First: 20300102000000001, End: 20300103000000000},
	}}, nil
}

func (p *longPast) ListAudit(context.Context, *marchv1.ListAuditRequest) (*marchv1.ListAuditResponse, error) {
	return &marchv1.ListAuditResponse{}, nil
}

// longPages serves the pages of a console with long histories.
func longPages(t *testing.T, p *longPast) string {
	t.Helper()
	return servePages(t, web.Config{Console: p, LongHistory: true})
}

// TestLongHistory: where a Prometheus is configured, the page has 7 and 30 days. It names days, does
// not ask again and again, and an error of Prometheus says what to do and leads to the shorter times.
func TestLongHistory(t *testing.T) {
	has := func(at, address string, wants ...string) string {
		t.Helper()
		_, page := get(t, at+address)
		for _, want := range wants {
			if !strings.Contains(page, want) {
				t.Errorf("%s does not have %q", address, want)
			}
		}
		return page
	}
	p := &longPast{past: past{rooms: []string{"a", "b", "c"}}}
	at := longPages(t, p)
	has(at, "/history", ">7 days<", ">30 days<", `aria-current="true">1 hour`)
	week := has(at, "/history?span=7d&numbers=1", `aria-current="true">7 days`,
		`aria-label="IDs per second, 2 Jan 03:00 to 9 Jan 03:00 UTC`, ">5 Jan<", "2 Jan 05:00\na: ",
		`class="code">2 Jan 05:00<`, "Etcd did not answer a for up to 60 s at a time", "99 of 100 transactions",
		"without tags of kind time", "From Prometheus")
	if strings.Contains(week, "hx-sse:connect") {
		t.Error("the page of a week asks Prometheus again and again")
	}
	if !regexp.MustCompile(`data-l="failed calls">–<`).MatchString(week) {
		t.Error("the failed calls of a tag are not unknown")
	}
	has(at, "/history?span=30d&room=b", `aria-current="true">30 days`, "Busiest tags of b",
		"2 Jan 03:00 to 1 Feb 03:00 UTC", `href="/history?room=b&amp;span=7d"`)
	has(at, "/history?span=90d", `Span: &#34;90d&#34;; allowed: 1h, 24h, 7d, 30d`)

	p.none = true
	has(at, "/history?span=7d", "Prometheus knows nothing of March’s rooms in this time", "--prometheus-cluster")
	p.down = allocator.Errorf(allocator.Unavailable,
		"prometheus: http://p:9090 does not answer: connection refused; check that it runs")
	broken := has(at, "/history?span=7d", `role="alert"`, "The last 7 days cannot be shown now",
		"Prometheus: http://p:9090 does not answer: connection refused; check that it runs.",
		`href="/history?span=24h"`)
	if strings.Contains(broken, "<svg class=\"plot\"") || strings.Contains(broken, "No tag was busy") {
		t.Error("without Prometheus the page has charts")
	}
	has(at, "/history?span=24h", `aria-current="true">24 hours`, "Etcd did not answer a ")

	without := pastPages(t, "a")
	if page := has(without, "/history", ">24 hours<"); strings.Contains(page, "7 days") {
		t.Error("a console without a Prometheus offers 7 days")
	}
	has(without, "/history?span=7d",
		`Span: &#34;7d&#34;; allowed: 1h, 24h; a console with --prometheus has longer ones`)
}

// TestTagChart: the page of a tag has its rate of the last hour by room, or says which tags have
// one. A tag with a period that nothing was leased of begins with the period's first ID.
func TestTagChart(t *testing.T) {
	at := longPages(t, &longPast{past: past{rooms: []string{"a", "b"}}})
	_, page := get(t, at+"/tags/order")
	for _, want := range []string{`aria-label="IDs per second in the last hour, 03:00 to 04:00 UTC, `,
		`href="/history?room=b">b</a>`, "03:21\na: 0\nb: ", "<dd>20,300,102,000,000,001 "} {
		if !strings.Contains(page, want) {
			t.Errorf("the page of a busy tag does not have %q", want)
		}
	}
	for _, tag := range []string{"rare", "fresh"} { // fresh has the first minute of a history
		if _, page := get(t, at+"/tags/"+tag); !strings.Contains(page, "only of their 20 busiest tags") ||
			strings.Contains(page, `class="plot"`) {
			t.Errorf("the page of a tag without a history does not say so:\n%s", page)
		}
	}
}
