package writes

import (
	"maps"
	"testing"
	"time"

	"github.com/march-id/march/allocator/ledger/store"
)

func put(key, value string) store.Op {
	return store.Op{Put: &store.Put{Key: key, Value: []byte(value)}}
}

func get(key string) store.Op {
	return store.Op{Get: &store.Get{Interval: store.Interval{Key: key}}}
}

func TestSeries(t *testing.T) {
	lease := store.Txn{
		If:   []store.Cond{{Key: "/march/c/epoch", Value: []byte("12345")}},
		Then: []store.Op{put("/march/c/marks/a/t", "67")},
		Else: []store.Op{get("/march/c/tags/t")},
	}
	leave := store.Txn{Then: []store.Op{{Delete: "/march/c/rooms/a/x"}, {Delete: "/march/c/alive/a/x"}}}
	s := make(Series)
	s.add(0, leave)
	s.add(2, lease)
	s.add(2, lease)
	s.add(3, lease)
	s.add(3, store.Txn{Then: []store.Op{get("/march/c/epoch")}}) // reads
	s.add(4, store.Txn{Then: []store.Op{get("/march/c/beat")}, Else: []store.Op{put("/march/c/beat", "")}})

	bytes := int64(len("/march/c/epoch12345/march/c/marks/a/t67/march/c/tags/t"))
	marks := Count{Writes: 2, Bytes: 2 * bytes}
	if got, want := s.Sum(1, 3), map[string]Count{"marks": marks}; !maps.Equal(got, want) {
		t.Errorf("seconds 1 and 2: %v, want %v", got, want)
	}
	if got := Total(s.Sum(0, 100)).Writes; got != 5 {
		t.Errorf("all: %d writes, want 5", got)
	}
	if got := Total(Weigh(s.Sum(0, 3), map[string]int64{"marks": 10, "tags": 10})).Writes; got != 21 {
		t.Errorf("weighed: %d writes, want 21", got)
	}
	if got := s.Busiest(0, 5, 2, nil); got != 2 {
		t.Errorf("the busiest two seconds begin at %d, want 2", got)
	}
	if got := s.Busiest(0, 5, 2, map[string]int64{"rooms": 10}); got != 0 {
		t.Errorf("weighed, the busiest two seconds begin at %d, want 0", got)
	}
}

func TestSpecValidate(t *testing.T) {
	good := Spec{Rooms: 2, Instances: 2, Tags: 1, Rate: 5, Spread: time.Second, Count: time.Second}
	if err := good.Validate(); err != nil {
		t.Error(err)
	}
	for name, change := range map[string]func(*Spec){
		"rooms":     func(s *Spec) { s.Rooms = 1 },
		"instances": func(s *Spec) { s.Instances = 1 },
		"tags":      func(s *Spec) { s.Tags = 0 },
		"rate":      func(s *Spec) { s.Rate = 7 },
		"reserve":   func(s *Spec) { s.Reserve = -time.Second },
		"spread":    func(s *Spec) { s.Spread = 0 },
		"settle":    func(s *Spec) { s.Settle = time.Millisecond },
		"count":     func(s *Spec) { s.Count = 0 },
		"move":      func(s *Spec) { s.Move = -time.Second },
	} {
		bad := good
		if change(&bad); bad.Validate() == nil {
			t.Errorf("%s: %+v is valid", name, bad)
		}
	}
}
