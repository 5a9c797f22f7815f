package serve_test

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	"github.com/march-id/march/internal/serve"
)

// Over HTTP/2 a connection has many requests at once: a caller's are bounded together. Over HTTP/1.1 it has one.
func TestRequestsOfOneCaller(t *testing.T) {
	t.Parallel()
	var h http.Handler
	ask := func(major int) int {
		w, r := httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", http.NoBody)
		r.ProtoMajor = major
		h.ServeHTTP(w, r)
		return w.Code
	}
	beside, got := false, []int(nil)
	h = serve.Bounded(1, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		if !beside {
			beside = true
			got = append(got, ask(2), ask(1))
		}
	}))
	got = append(got, ask(2), ask(2))
	want := []int{http.StatusTooManyRequests, http.StatusOK, http.StatusOK, http.StatusOK}
	if !slices.Equal(got, want) {
		t.Errorf("%v, want %v: a second one is refused, but not over HTTP/1.1 or later", got, want)
	}
}
