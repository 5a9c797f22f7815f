package allocator

import "time"

// DefaultShare is the Share of a caller for whom no other one was chosen.
const DefaultShare = 75

// Holder is a caller that may hold something of which there is little: workers, or machine IDs. The zero value is a
// caller without bounds.
type Holder struct {
	// Name is the caller's, such as "subject token:shop"; empty for a caller without bounds.
	Name string
	// Most is how many the caller may hold at once; 0 for no such bound.
	Most int64
	// Share is how much the caller may hold of what it holds and what is free, in percent. As the free ones of a
	// room are those of all its instances, no caller gets all of a room's by asking each instance.
	Share int64
}

// Another returns nil if the caller may have another one of what, such as "workers of 10 bits". It holds has of them,
// and all of every kind, and free ones are left. A caller that has none may have any. The error is TooMany, and says
// that the caller should come back after some time.
func (h Holder) Another(what string, has, all, free int64, after time.Duration) error {
	var err error
	switch {
	case h.Name == "":
	case h.Most > 0 && all >= h.Most:
		err = Errorf(TooMany, "%s holds %d %s of this instance, %d with others; allowed by its quota workers: %d",
			h.Name, has, what, all, h.Most)
	case has > 0 && 100*(has+1) > h.Share*(has+free):
		err = Errorf(TooMany, "%s holds %d %s of this instance, and %d are left; "+
			"allowed by its quota worker_share: %d%% of both together", h.Name, has, what, free, h.Share)
	}
	if err == nil {
		return nil
	}
	return &WaitError{After: max(after, time.Second), Err: err}
}
