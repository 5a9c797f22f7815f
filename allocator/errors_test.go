package allocator_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/march-id/march/allocator"
)

func TestKinds(t *testing.T) {
	names := make(map[string]bool)
	for k := range allocator.Kinds {
		err := fmt.Errorf("outer: %w", allocator.Errorf(k, "inner %d: %w", 1, errors.New("cause")))
		if !errors.Is(err, k) || allocator.KindOf(err) != k {
			t.Errorf("%v: KindOf %v", k, allocator.KindOf(err))
		}
		for other := range allocator.Kinds {
			if other != k && errors.Is(err, other) {
				t.Errorf("%v is %v too", k, other)
			}
		}
		if name := k.Error(); name == "" || names[name] {
			t.Errorf("kind %d has the name %q", k, name)
		}
		names[k.Error()] = true
		if got := allocator.KindOf(fmt.Errorf("bare: %w", k)); got != k {
			t.Errorf("a bare %v is %v", k, got)
		}
	}
	if got := allocator.KindOf(errors.New("unclassified")); got != allocator.Internal {
		t.Errorf("an unclassified error is %v", got)
	}
	if got := (&allocator.Error{}).Error(); got != "internal" {
		t.Errorf("the zero error says %q", got)
	}
	if got := allocator.Kind(200).Error(); got != "kind_200" {
		t.Errorf("kind 200 says %q", got)
	}
}

func TestAwayErrorKeepsItsKind(t *testing.T) {
	err := fmt.Errorf("next: %w", &allocator.AwayError{Tag: "order", Since: time.Now(), Err: errors.New("refused")})
	if !errors.Is(err, allocator.Unavailable) || allocator.KindOf(err) != allocator.Unavailable {
		t.Errorf("%v is %v", err, allocator.KindOf(err))
	}
}

// While the source is away, the chains of all tags share one attempt to lease. So
// the failure that a caller gets may name another tag. The message must not suggest
// that the caller's tag waits for that tag.
func TestAwayErrorSaysWhoseTryFailed(t *testing.T) {
	since := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	err := &allocator.AwayError{Tag: "order", Since: since, Err: errors.New("lease of tag invoice: refused")}
	want := "tag order has no IDs left in memory, and no segment of any tag could be leased since " +
		"2026-01-02T03:04:05Z; " +
		"the last try: lease of tag invoice: refused; retry later"
	if got := err.Error(); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// An error of two causes has both.
func TestErrorOfTwoCauses(t *testing.T) {
	first, second := errors.New("first"), &allocator.AwayError{}
	err := allocator.Errorf(allocator.Unavailable, "%w, and %w", first, second)
	if _, is := errors.AsType[*allocator.AwayError](err); !errors.Is(err, first) || !is {
		t.Errorf("%v lacks a cause", err)
	}
}

// gRPC's own words of a connection that failed do not tell an operator what to do.
func TestConnectionText(t *testing.T) {
	for text, want := range map[string]string{
		"no such tag": "no such tag",
		`last: connection error: desc = "transport: Error while dialing: dial tcp 127.0.0.1:1: connect: connection ` +
			`refused"`: "dial tcp 127.0.0.1:1: connect: connection refused",
		`connection error: desc = "error reading server preface: EOF"`: "error reading server preface: EOF: a server " +
			"that asks for TLS ends a plain connection so",
	} {
		if got := allocator.ConnectionText(text); got != want {
			t.Errorf("%s: got %q, want %q", text, got, want)
		}
	}
}
