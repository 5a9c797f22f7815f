package redis

import (
	"context"
	"net"
	"sync/atomic"
	"testing"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/room/door"
)

// anyTag is a room that has every tag, and knows no token.
type anyTag struct {
	door.Room
	last atomic.Int64
}

func (a *anyTag) Next(context.Context, string) (int64, error) { return a.last.Add(1), nil }

func (a *anyTag) TryNext(context.Context, string) (int64, bool, error) {
	return a.last.Add(1), true, nil
}

func (a *anyTag) NextRun(_ context.Context, _ string, n int64) (int64, error) {
	if n > 50 {
		return 0, allocator.Errorf(allocator.Invalid, "count: %d; allowed: 1 to 50", n)
	}
	return 1, nil
}

func (a *anyTag) Peek(context.Context, string) (int64, error) { return 1, nil }

func (a *anyTag) Create(context.Context, string, int64) (bool, error) { return true, nil }

func (a *anyTag) Open() bool { return false }

func (a *anyTag) Barred(context.Context) bool { return false }

func (a *anyTag) Login(context.Context, string) (context.Context, error) {
	return nil, allocator.Errorf(allocator.Unauthenticated, "the token is not known")
}

// sink is a connection that reads nothing and takes every answer.
type sink struct{ net.Conn }

// BenchmarkIncr is a command from the buffer to the answer, without a network. It allocates
// nothing.
func BenchmarkIncr(b *testing.B) {
	d := New(Config{Room: &anyTag{}})
	c := &conn{door: d, net: sink{}, ctx: b.Context(), output: output{protocol: 3}}
	command := []byte("*2\r\n$4\r\nINCR\r\n$5\r\norder\r\n")
	b.ReportAllocs()
	for b.Loop() {
		c.in = append(c.in[:0], command...)
		if err := c.answerAll(); err != nil {
			b.Fatal(err)
		}
		c.out = c.out[:0]
	}
}

// Neither a goroutine nor a loop allocates for an INCR.
func TestIncrAllocatesNothing(t *testing.T) {
	d := New(Config{Room: &anyTag{}})
	c := &conn{door: d, net: sink{}, ctx: t.Context(), output: output{protocol: 3}}
	command := []byte("*2\r\n$4\r\nINCR\r\n$9\r\norder:IDs\r\n")
	for name, answer := range map[string]func() bool{
		"goroutine": func() bool { return c.answerAll() == nil },
		"loop":      func() bool { c.countOnly(); return len(c.in) == 0 },
	} {
		if n := testing.AllocsPerRun(1000, func() {
			c.in = append(c.in[:0], command...)
			if !answer() || len(c.out) == 0 || c.out[0] != ':' {
				t.Fatalf("%s: %q", name, c.out)
			}
			c.out = c.out[:0]
		}); n != 0 {
			t.Errorf("%s: %v allocations for an INCR", name, n)
		}
	}
}
