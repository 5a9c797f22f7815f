package client_test

import (
	"testing"

	"github.com/march-id/march/allocator/format"
	"github.com/march-id/march/allocator/timeid"
	"github.com/march-id/march/api/client"
)

// BenchmarkTimed measures Next of time-ordered IDs in the caller's process, beside the
// generator alone, with so many bits of sequence that no caller waits for a tick.
func BenchmarkTimed(b *testing.B) {
	c := newCluster(b)
	wide := cosid
	wide.TimeBits, wide.WorkerBits, wide.SequenceBits = 41, 2, 20
	c.timed(wide, timeid.Wait, "event")
	tag := tagOf(b, newClient(b, client.Options{Addresses: []string{c.room("a", "a1").address}}), "event")
	ctx := b.Context()
	b.Run("client", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := tag.Next(ctx); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("generator", func(b *testing.B) {
		b.ReportAllocs()
		g, err := timeid.New(timeid.Config{Layout: wide, Window: timeid.Window{From: wide.Epoch, Until: wide.End()}})
		if err != nil {
			b.Fatal(err)
		}
		for b.Loop() {
			if _, err := g.Next(ctx); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkText measures AppendNext, beside Next.
func BenchmarkText(b *testing.B) {
	c := newCluster(b)
	c.texts("order", "prefix(ORD-) | radix62(10)", format.Key{})
	tag := tagOf(b, newClient(b, client.Options{Addresses: []string{c.room("a", "a1").address}}), "order")
	ctx := b.Context()
	b.Run("number", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := tag.Next(ctx); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("text", func(b *testing.B) {
		b.ReportAllocs()
		buffer := make([]byte, 0, 64)
		for b.Loop() {
			if _, _, err := tag.AppendNext(ctx, buffer); err != nil {
				b.Fatal(err)
			}
		}
	})
}
