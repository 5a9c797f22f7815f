package room_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/gomodule/redigo/redis"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/internal/testcluster"
	"github.com/march-id/march/room"
)

// redisClient is a client of a door, with one connection, which it makes for its first command.
type redisClient struct {
	tb      testing.TB
	address string
	options []redis.DialOption
	mu      struct {
		sync.Mutex
		conn redis.Conn // nil before
	}
}

func newRedisClient(tb testing.TB, door net.Addr, options ...redis.DialOption) *redisClient {
	tb.Helper()
	return &redisClient{tb: tb, address: door.String(), options: append(options, redis.DialReadTimeout(patience))}
}

// another returns another client of the same door.
func (r *redisClient) another() *redisClient {
	return &redisClient{tb: r.tb, address: r.address, options: r.options}
}

// connect returns the connection. The caller holds the lock.
func (r *redisClient) connect() (conn redis.Conn, err error) {
	if r.mu.conn == nil {
		if conn, err = redis.Dial("tcp", r.address, r.options...); err != nil {
			return nil, err
		}
		r.mu.conn = conn
		r.tb.Cleanup(func() { _ = conn.Close() })
	}
	return r.mu.conn, nil
}

// do returns the answer to a command.
func (r *redisClient) do(command string, args ...any) (any, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	conn, err := r.connect()
	if err != nil {
		return nil, err
	}
	return conn.Do(command, args...)
}

// id returns the answer to a command, which is an ID.
func (r *redisClient) id(command string, args ...any) (int64, error) {
	return redis.Int64(r.do(command, args...))
}

// err returns how a command failed.
func (r *redisClient) err(command string, args ...any) error {
	_, err := r.do(command, args...)
	return err
}

// pipeline sends a command n times before it reads the answers.
func (r *redisClient) pipeline(n int, command string, args ...any) (answers []any, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	conn, err := r.connect()
	for range n {
		if err == nil {
			err = conn.Send(command, args...)
		}
	}
	if err != nil {
		return nil, err
	}
	return redis.Values(conn.Do("")) // an answer that is an error is one of them
}

// withRedis starts an instance with a door, and returns a client of it.
func (c *cluster) withRedis(in allocator.Room, name allocator.Instance, create bool) (*instance, *redisClient) {
	c.Helper()
	var l net.Listener
	i := c.start(in, name, func(cfg *room.Config) {
		l = testcluster.Listen(c, "")
		cfg.Doors.Redis, cfg.CreateTags = l, create
	})
	return i, newRedisClient(c, l.Addr(), redis.DialContextFunc(
		func(ctx context.Context, _, address string) (net.Conn, error) {
			return testcluster.DialContext(ctx, address)
		}))
}

func TestRedis(t *testing.T) {
	t.Parallel()
	c := newCluster(t, testcluster.Halves())
	c.tag(nil, "order", "order_3aid")
	c.tag(timed(cosid), "event")
	_, a := c.withRedis("a", "a1", false)
	_, b := c.withRedis("b", "b1", true)
	for want := int64(1); want < 4; want++ {
		if id, err := a.id("INCR", "order"); err != nil || id != want {
			t.Errorf("incr: %d, %v; want %d", id, err, want)
		}
	}
	if last, err := a.id("INCRBY", "order", 40); err != nil || last != 43 {
		t.Errorf("incrby: %d, %v", last, err)
	}
	if last, err := a.id("INCRBY", "order", 40); err != nil || last != 139 { // 44 to 49 are too few
		t.Errorf("incrby over a block: %d, %v", last, err)
	}
	if next, err := redis.String(a.do("GET", "order")); err != nil || next != "140" {
		t.Errorf("get: %s, %v", next, err)
	}
	if id, err := b.id("INCR", "order"); err != nil || id%100 < 50 {
		t.Errorf("incr in room b: %d, %v", id, err)
	}
	if id, err := a.id("INCR", "order:id"); err != nil || id != 1 {
		t.Errorf("incr of an escaped key: %d, %v", id, err)
	}
	if id, err := a.id("INCR", "event"); err != nil || id < 1<<40 {
		t.Errorf("incr of time-ordered IDs: %d, %v", id, err)
	}
	err := a.err("MULTI")
	if queued, pipelineErr := a.pipeline(100, "INCR", "order"); err != nil || pipelineErr != nil || len(queued) != 100 {
		t.Errorf("transaction: %v, %v: %v", err, pipelineErr, queued)
	}
	if ids, err := redis.Int64s(a.do("EXEC")); err != nil || len(ids) != 100 {
		t.Errorf("transaction: %v, %v", ids, err)
	}
	for what, want := range map[string]struct {
		err  error
		says string
	}{
		"unknown":  {a.err("INCR", "nosuch"), "ERR march: tag nosuch does not exist"},
		"too many": {a.err("INCRBY", "order", 51), "ERR march: count: 51; allowed: 1 to 50"},
		"time":     {a.err("INCRBY", "event", 2), "ERR march: tag event has time-ordered IDs"},
		"create":   {a.err("SET", "new", 7, "NX"), "ERR march: tag new does not exist, and this room creates none"},
		"expire":   {a.err("EXPIRE", "order", 1), "ERR march: EXPIRE is not served: a tag has no time to live"},
	} {
		if want.err == nil || !strings.HasPrefix(want.err.Error(), want.says) {
			t.Errorf("%s: %v; want %s", what, want.err, want.says)
		}
	}
	if _, err := redis.String(a.do("GET", "nosuch")); !errors.Is(err, redis.ErrNil) {
		t.Errorf("get of nothing: %v", err)
	}
	if _, err := redis.String(b.do("GET", "nosuch")); !errors.Is(err, redis.ErrNil) { // and creates none
		t.Errorf("get of nothing: %v", err)
	}
	for k, want := range []bool{true, false} {
		if made, err := redis.Bool(b.do("SETNX", "adder", 41)); err != nil || made != want {
			t.Errorf("setnx %d: %v, %v", k, made, err)
		}
	}
	if id, err := a.id("INCR", "adder"); err != nil || id != 42 {
		t.Errorf("incr after setnx: %d, %v", id, err)
	}
	// Before, such a tag went on above 2^53, where clients in JavaScript round numbers, and nothing told of it.
	for key, row := range map[string]struct{ value, limit int64 }{
		"adder": {41, 1 << 53}, "near": {1 << 52, allocator.MaxID}, "above": {1 << 60, allocator.MaxID},
	} {
		if err := b.err("SETNX", key, row.value); err != nil {
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
	answers, err := client.pipeline(8, "INCR", "few")
	if err != nil || len(answers) != 8 {
		t.Errorf("%v, %v", answers, err)
	}
	for k, answer := range answers {
		id, err := redis.Int64(answer, nil)
		if k < 5 && (err != nil || id != int64(k+1)) ||
			k >= 5 && (err == nil || !strings.HasPrefix(err.Error(), "ERR march: ")) {
			t.Errorf("command %d: %d, %v", k, id, err)
		}
	}
}
