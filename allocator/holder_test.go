package allocator_test

import (
	"errors"
	"testing"
	"time"

	"github.com/march-id/march/allocator"
)

// A caller that asks again and again, at any number of instances of a room, never holds all of what the room has, and
// the first one that it asks for is never refused while one is free.
func TestNoHolderGetsAll(t *testing.T) {
	for _, instances := range []int{1, 2, 3, 8} {
		for width := int64(1); width <= 300; width++ {
			h := allocator.Holder{Name: "address 10.0.0.1", Share: allocator.DefaultShare}
			has, free := make([]int64, instances), width
			for refused := 0; refused < instances && free > 0; {
				refused = 0
				for i := range has {
					if h.Another("workers", has[i], has[i], free, 0) != nil {
						refused++
					} else if free > 0 {
						has[i], free = has[i]+1, free-1
					}
				}
			}
			if width > int64(instances) && free == 0 {
				t.Errorf("%d instances: all %d", instances, width)
			}
			if instances == 1 && width >= 4 && width-free != 3*width/4 {
				t.Errorf("%d of %d", width-free, width)
			}
			if free > 0 && (allocator.Holder{Name: "another", Share: 1}).Another("workers", 0, 0, free, 0) != nil {
				t.Error("another caller gets none")
			}
		}
	}
}

// A refusal names the caller, the quota, what it holds and what is allowed, and says when to come back.
func TestHolderRefused(t *testing.T) {
	for says, err := range map[string]error{
		"subject token:a holds 2 workers of 10 bits of this instance, 5 with others; " +
			"allowed by its quota workers: 5": allocator.
			Holder{Name: "subject token:a", Most: 5, Share: 100}.Another("workers of 10 bits", 2, 5, 100, time.Minute),
		"subject token:a holds 3 machine IDs of this instance, and 1 are left; " +
			"allowed by its quota worker_share: 75% of both together": allocator.
			Holder{Name: "subject token:a", Share: 75}.Another("machine IDs", 3, 3, 1, time.Minute),
	} {
		var wait *allocator.WaitError
		if !errors.As(err, &wait) || wait.After != time.Minute || allocator.KindOf(err) != allocator.TooMany ||
			err.Error() != says {
			t.Errorf("%v, want %s", err, says)
		}
	}
	for _, h := range []allocator.Holder{{}, {Name: "a", Share: 100}, {Name: "a", Share: 1, Most: 6}} {
		if err := h.Another("workers", 0, 5, 1, 0); err != nil {
			t.Errorf("%+v: %v", h, err)
		}
	}
}
