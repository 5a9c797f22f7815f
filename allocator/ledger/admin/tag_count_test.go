package admin_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/admin"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/record"
)

// Tags could be created without bound.
func TestMaxTags(t *testing.T) {
	const most = 3
	store := ledgertest.NewFake(t)
	refused := 0
	cfg := admin.Config{MaxTags: most, TooManyTags: func() { refused++ }}
	a := admin.New(ledgertest.Open(t, store.Open()), cfg)
	layout := allocator.Layout{Boundary: 10, Ranges: map[allocator.Room]allocator.Range{"a": {Lower: 0, Upper: 10}}}
	if _, err := a.Init(t.Context(), layout, "test"); err != nil {
		t.Fatal(err)
	}
	var err error
	for i := range most + 1 {
		_, err = a.CreateTag(t.Context(), allocator.Tag(fmt.Sprint("t", i)), record.DefaultTag(), "test")
		if i < most && err != nil {
			t.Fatal(err)
		}
	}
	if !errors.Is(err, allocator.TooMany) || !strings.Contains(err.Error(), "allowed: 3 (--max-tags)") || refused != 1 {
		t.Errorf("one more than %d tags: %v; %d were counted as refused", most, err, refused)
	}
	other := admin.New(ledgertest.Open(t, store.Open()), cfg)
	if _, err := other.CreateTag(t.Context(), "t9", record.DefaultTag(), "test"); !errors.Is(err, allocator.TooMany) {
		t.Errorf("by a process that has created none: %v", err)
	}
	if err := other.DeleteTag(t.Context(), "t0", "test"); err != nil {
		t.Fatal(err)
	}
	fresh := admin.New(ledgertest.Open(t, store.Open()), cfg)
	if _, err := fresh.CreateTag(t.Context(), "t9", record.DefaultTag(), "test"); err != nil {
		t.Errorf("after one was deleted: %v", err)
	}
}
