package api

import (
	"fmt"

	"github.com/march-id/march/allocator"
	marchv1 "github.com/march-id/march/api/march/v1"
)

const (
	// MaxManyTags is how many tags one NextMany names at most.
	MaxManyTags = 100
	// MaxMany is how many IDs one NextMany returns at most, of all its tags together.
	MaxMany = MaxTexts
)

// CheckMany checks the names and the counts of a NextMany. Its error is Invalid, and names
// the place in the request.
func CheckMany(r *marchv1.NextManyRequest) error {
	tags := r.GetTags()
	if n := len(tags); n < 1 || n > MaxManyTags {
		return allocator.Errorf(allocator.Invalid, "tags: %d; allowed: 1 to %d", n, MaxManyTags)
	}
	named := make(map[string]int, len(tags))
	sum := int64(0)
	for i, t := range tags {
		if _, err := allocator.ParseTag(t.GetTag()); err != nil {
			return fmt.Errorf("tags[%d]: %w", i, err)
		}
		n := t.GetCount()
		if n < 1 || n > MaxMany {
			return InMany(i, t.GetTag(), allocator.Errorf(allocator.Invalid, "count: %d; allowed: 1 to %d", n, MaxMany))
		}
		if first, twice := named[t.GetTag()]; twice {
			return InMany(i, t.GetTag(), allocator.Errorf(allocator.Invalid,
				"tag: named in tags[%d], too; allowed: each tag once", first))
		}
		named[t.GetTag()] = i
		sum += n
	}
	if sum > MaxMany {
		return allocator.Errorf(allocator.Invalid, "tags: the counts are %d together; allowed: 1 to %d", sum, MaxMany)
	}
	return nil
}

// InMany returns the error of one tag of a NextMany, with its place in the request and the
// tag's name. It has the error's Kind.
func InMany(i int, tag string, err error) error {
	return fmt.Errorf("tags[%d] (%s): %w", i, tag, err)
}

// Skipped returns the error of one tag of a NextMany with the number of IDs that the call
// had taken of the tags before it. It has the error's Kind.
func Skipped(err error, taken int64) error {
	if taken == 0 {
		return err
	}
	return fmt.Errorf("%w; skipped, and never issued: %d IDs that the call had taken of the tags before", err, taken)
}
