package door_test

import (
	"context"
	"encoding/json"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/room/cosid"
	"github.com/march-id/march/room/door"
	"github.com/march-id/march/room/leaf"
	"github.com/march-id/march/room/tinyid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fewTags is a room with one tag, order, which has no more than 50 IDs in a row.
type fewTags struct{ door.Room }

func (fewTags) is(tag string, n int64) error {
	switch {
	case tag != "order" && tag != "ns.order":
		return allocator.Errorf(allocator.NotFound, "tag %s does not exist", tag)
	case n > 50:
		return allocator.Errorf(allocator.Invalid, "%d; allowed: 1 to 50", n)
	}
	return nil
}

func (f fewTags) Next(_ context.Context, tag string) (int64, error) { return 7, f.is(tag, 1) }

func (f fewTags) NextN(_ context.Context, tag string, n int64) ([]allocator.Run, error) {
	return []allocator.Run{{First: 7, Count: min(n, 50)}}, f.is(tag, 1)
}

func (f fewTags) NextKept(_ context.Context, tag string, n int64) (allocator.Run, error) {
	return allocator.Run{First: 7, Count: max(n, 1)}, f.is(tag, n)
}

func (fewTags) Create(_ context.Context, tag string, _ int64) (bool, error) {
	return false, allocator.Errorf(allocator.Refused, "tag %s does not exist, and this room creates none", tag)
}

// Each of 100,000 bad requests of a system is answered in the system's own form: a status
// that it has, with a number, nothing, or its JSON.
func TestBadRequests(t *testing.T) {
	t.Parallel()
	const requests = 100_000
	l, err := leaf.New(fewTags{}, "")
	if err != nil {
		t.Fatal(err)
	}
	for name, system := range map[string]struct {
		handler http.Handler
		paths   []string
		params  []string
		allowed map[int]bool
		field   string // which every object has
	}{
		"leaf": {
			l, []string{"/api/segment/get/", "/api/snowflake/get/", "/decodeSnowflakeId", "/nosuch/"},
			[]string{"snowflakeId"},
			map[int]bool{200: true, 301: true, 307: true, 400: true, 404: true, 500: true}, "",
		},
		"tinyid": {
			tinyid.New(fewTags{}, tinyid.AnyToken("good")), []string{"/tinyid/id/nextId", "/tinyid/id/nextIdSimple",
				"/tinyid/id/nextSegmentId", "/tinyid/id/nextSegmentIdSimple", "/"},
			[]string{"token", "bizType", "batchSize"},
			map[int]bool{200: true, 301: true, 307: true, 400: true, 404: true}, "",
		},
		"cosid": {
			cosid.New(fewTags{}, nil), []string{"/segments/ns/", "/segments/distributor/ns/",
				"/machines/ns", "/ids/", "/"},
			[]string{"step", "offset", "machineBit", "instanceId", "stable"},
			map[int]bool{200: true, 301: true, 307: true, 400: true, 500: true}, "code",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dice := rand.New(rand.NewPCG(20, 2))
			values := []string{"", "order", "good", "0", "-1", "1", "51", "9223372036854775808", "x", "%", "%zz", "é",
				strings.Repeat("y", 300), "a/b", "..", "true", "\x7f", "1.5"}
			methods := []string{http.MethodGet, http.MethodPost, http.MethodPatch, http.MethodDelete, http.MethodPut,
				http.MethodOptions, "FOO"}
			pick := func(of []string) string { return of[dice.IntN(len(of))] }
			seen := make(map[int]int)
			for range requests {
				var query strings.Builder
				for range dice.IntN(4) {
					value := pick(values)
					if dice.IntN(3) > 0 { // else as no client writes it
						value = url.QueryEscape(value)
					}
					query.WriteString(pick(system.params) + "=" + value + pick([]string{"&", "&", ";", "&&"}))
				}
				r := httptest.NewRequest(http.MethodGet, "http://door/", http.NoBody).WithContext(t.Context())
				r.Method = pick(methods)
				r.URL = &url.URL{Path: pick(system.paths) + pick(values), RawQuery: query.String()}
				if dice.IntN(4) == 0 {
					r.Header.Set("Content-Type",
						pick([]string{"application/x-www-form-urlencoded", "multipart/form-data", "text/plain", ";"}))
					body := query.String()
					r.Body, r.ContentLength = io.NopCloser(strings.NewReader(body)), int64(len(body))
				}
				w := httptest.NewRecorder()
				system.handler.ServeHTTP(w, r)
				seen[w.Code]++
				body := w.Body.String()
				if !system.allowed[w.Code] {
					t.Fatalf("%s %s: %d %s", r.Method, r.URL, w.Code, body)
				}
				if !strings.HasPrefix(body, "{") {
					continue
				}
				var object map[string]any
				if err := json.Unmarshal([]byte(body), &object); err != nil {
					t.Fatalf("%s %s: %s: %v", r.Method, r.URL, body, err)
				}
				if _, is := object[system.field]; system.field != "" && w.Code != http.StatusOK && !is {
					t.Fatalf("%s %s: %s has no %s", r.Method, r.URL, body, system.field)
				}
			}
			if len(seen) < 3 {
				t.Errorf("all answers have one of %d statuses", len(seen))
			}
		})
	}
}
