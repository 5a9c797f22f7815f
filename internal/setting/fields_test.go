package setting

import (
	"math"
	"testing"
	"time"

	"github.com/march-id/march/allocator"
)

type inner struct {
	Lasts time.Duration `flag:"lasts" least:"1m" help:"how long"`
	Other int
}

type server struct {
	inner
	Share float64 `flag:"share" least:"0" most:"1"`
	Most  struct {
		Pages int `flag:"pages" least:"1" most:"100"`
	}
	Name string `flag:"name" of:"a b"`
}

// The settings of a struct are its fields with a flag, also those of structs in it, and each has its bounds.
func TestFields(t *testing.T) {
	at := func(change func(*server)) *server {
		s := &server{inner: inner{Lasts: time.Minute}}
		s.Most.Pages = 100
		change(s)
		return s
	}
	s := at(func(*server) {})
	list := Fields(s)
	if len(list) != 4 || list[0].Name != "lasts" || list[0].Get("help") != "how long" || list[2].To != &s.Most.Pages {
		t.Errorf("%+v", list)
	}
	for want, s := range map[string]*server{
		"":                                s,
		"lasts: 59s; allowed: 1m or more": at(func(s *server) { s.Lasts = 59 * time.Second }),
		"share: 1.5; allowed: 0 to 1":     at(func(s *server) { s.Share = 1.5 }),
		"share: NaN; allowed: 0 to 1":     at(func(s *server) { s.Share = math.NaN() }),
		"pages: 101; allowed: 1 to 100":   at(func(s *server) { s.Most.Pages = 101 }),
		"pages: -1; allowed: 1 to 100":    at(func(s *server) { s.Most.Pages = -1 }),
	} {
		if err := Check(s); want == "" && err != nil || want != "" && (err == nil || err.Error() != want ||
			allocator.KindOf(err) != allocator.Invalid) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}
