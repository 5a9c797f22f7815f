package room_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/internal/testcluster"
	"github.com/march-id/march/room"
)

// withRedis starts an instance with a door, and returns a client of it.
func (c *cluster) withRedis(in allocator.Room, name allocator.Instance, create bool) (*instance, *redis.Client) {
	c.Helper()
	var l net.Listener
	i := c.start(in, name, func(cfg *room.Config) {
		l = testcluster.Listen(c, "")
		cfg.Doors.Redis, cfg.CreateTags = l, create
	})
	client := redis.NewClient(&redis.Options{Addr: l.Addr().String(),
		Dialer: func(ctx context.Context, _, address string) (net.Conn, error) {
			return testcluster.DialContext(ctx, address)
		}})
	c.Cleanup(func() { _ = client.Close() })
	return i, client
}

func TestRedis(t *testing.T) {
	t.Parallel()
	c := newCluster(t, testcluster.Halves())
	c.tag(nil, "order", "order_3aid")
	c.tag(timed(cosid), "event")
	_, a := c.withRedis("a", "a1", false)
	_, b := c.withRedis("b", "b1", true)
	for want := int64(1); want < 4; want++ {
		if id, err := a.Incr(bg, "order").Result(); err != nil || id != want {
			t.Errorf("incr: %d, %v; want %d", id, err, want)
		}
	}
	if last, err := a.IncrBy(bg, "order", 40).Result(); err != nil || last != 43 {
		t.Errorf("incrby: %d, %v", last, err)
	}
	if last, err := a.IncrBy(bg, "order", 40).Result(); err != nil || last != 139 { // 44 to 49 are too few
		t.Errorf("incrby over a block: %d, %v", last, err)
	}
	if next, err := a.Get(bg, "order").Result(); err != nil || next != "140" {
		t.Errorf("get: %s, %v", next, err)
	}
	if id, err := b.Incr(bg, "order").Result(); err != nil || id%100 < 50 {
		t.Errorf("incr in room b: %d, %v", id, err)
	}
	if id, err := a.Incr(bg, "order:id").Result(); err != nil || id != 1 {
		t.Errorf("incr of an escaped key: %d, %v", id, err)
	}
	if id, err := a.Incr(bg, "event").Result(); err != nil || id < 1<<40 {
		t.Errorf("incr of time-ordered IDs: %d, %v", id, err)
	}
	cmds, err := a.TxPipelined(bg, func(p redis.Pipeliner) error {
		for range 100 {
			p.Incr(bg, "order")
		}
		return nil
	})
	if err != nil || len(cmds) != 100 {
		t.Errorf("transaction: %v", err)
	}
	for what, want := range map[string]struct {
		err  error
		says string
	}{
		"unknown":  {a.Incr(bg, "nosuch").Err(), "ERR march: tag nosuch does not exist"},
		"too many": {a.IncrBy(bg, "order", 51).Err(), "ERR march: count: 51; allowed: 1 to 50"},
		"time":     {a.IncrBy(bg, "event", 2).Err(), "ERR march: tag event has time-ordered IDs"},
		"create":   {a.SetNX(bg, "new", 7, 0).Err(), "ERR march: tag new does not exist, and this room creates none"},
		"expire":   {a.Expire(bg, "order", 1e9).Err(), "ERR march: EXPIRE is not served: a tag has no time to live"},
	} {
		if want.err == nil || !strings.HasPrefix(want.err.Error(), want.says) {
			t.Errorf("%s: %v; want %s", what, want.err, want.says)
		}
	}
	if _, err := a.Get(bg, "nosuch").Result(); !errors.Is(err, redis.Nil) {
		t.Errorf("get of nothing: %v", err)
	}
	if _, err := b.Get(bg, "nosuch").Result(); !errors.Is(err, redis.Nil) { // and creates none
		t.Errorf("get of nothing: %v", err)
	}
	for k, want := range []bool{true, false} {
		if made, err := b.SetNX(bg, "adder", 41, 0).Result(); err != nil || made != want {
			t.Errorf("setnx %d: %v, %v", k, made, err)
		}
	}
	if id, err := a.Incr(bg, "adder").Result(); err != nil || id != 42 {
		t.Errorf("incr after setnx: %d, %v", id, err)
	}
	// Before, such a tag went on above 2^53, where clients in JavaScript round numbers, and nothing told of it.
	for key, row := range map[string]struct{ value, limit int64 }{
		"adder": {41, 1 << 53}, "near": {1 << 52, allocator.MaxID}, "above": {1 << 60, allocator.MaxID},
	} {
		if err := b.SetNX(bg, key, row.value, 0).Err(); err != nil {
			t.Errorf("%s: %v", key, err)
		}
		tag, err := c.Admin.Tag(bg, allocator.Tag(key))
		if err != nil || tag.Limit != row.limit {
			t.Errorf("%s: limit %d, %v; want %d", key, tag.Limit, err, row.limit)
		}
	}
}

// The tag's limit is reached in the middle of a pipeline: what is left is answered, in order.
func TestRedisAtTheLimit(t *testing.T) {
	t.Parallel()
	c := newCluster(t, testcluster.Halves())
	c.tag(func(s *record.TagSettings) { s.Limit = 6 }, "few")
	_, client := c.withRedis("a", "a1", false)
	cmds, _ := client.Pipelined(bg, func(p redis.Pipeliner) error {
		for range 8 {
			p.Incr(bg, "few")
		}
		return nil
	})
	for k, cmd := range cmds {
		id, err := cmd.(*redis.IntCmd).Result()
		if k < 5 && (err != nil || id != int64(k+1)) ||
			k >= 5 && (err == nil || !strings.HasPrefix(err.Error(), "ERR march: ")) {
			t.Errorf("command %d: %d, %v", k, id, err)
		}
	}
}
