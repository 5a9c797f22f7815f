package imports_test

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/internal/imports"
	"github.com/march-id/march/internal/testservers"
)

// messages returns what a message says of bad rows.
func messages(bad []*imports.Bad) (all []string) {
	for _, b := range bad {
		all = append(all, b.Error())
	}
	return all
}

// TestReadPostgres reads the tables of all three systems that can be in a PostgreSQL.
func TestReadPostgres(t *testing.T) {
	t.Parallel()
	dsn := "postgres://march@" + testservers.Postgres(t) + "/postgres"
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(t.Context())) }()
	for _, statement := range []string{
		`CREATE TABLE leaf_alloc (biz_tag varchar(128) PRIMARY KEY, max_id bigint NOT NULL DEFAULT 1, step int NOT NULL, description varchar(256))`,
		`INSERT INTO leaf_alloc VALUES ('order', 3001, 1000, 'x'), ('User:id', 9223372036854775000, 10, NULL), ('bad', -4, 10, NULL)`,
		`CREATE SCHEMA old`,
		`CREATE TABLE old."tiny ids" (biz_type varchar(63), max_id bigint, step int, delta int, remainder int)`,
		`INSERT INTO old."tiny ids" VALUES ('order', 500, 100, 2, 1), ('order', 400, 100, 2, 0), (NULL, 1, 1, 1, 0)`,
		`CREATE TABLE cosid (name varchar(100) PRIMARY KEY, last_max_id bigint, last_fetch_time bigint)`,
		`INSERT INTO cosid VALUES ('shop.order', 20, 1)`,
		`CREATE TABLE other (name text)`,
		`CREATE ROLE reader LOGIN`,
	} {
		if _, err := conn.Exec(t.Context(), statement); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
	for _, c := range []struct {
		system *imports.System
		table  string
		want   []imports.Row
		bad    []string
	}{
		{imports.Leaf, "", []imports.Row{
			{Place: "postgres/leaf_alloc, row 1 (order)", Name: "order", Next: 3001, Step: 1000, Delta: 1},
			{Place: "postgres/leaf_alloc, row 2 (User:id)", Name: "User:id",
				Next: 9223372036854775000, Step: 10, Delta: 1},
		},
			[]string{`postgres/leaf_alloc, row 3 (bad): max_id: "-4"; allowed: a whole number, 0 to 9223372036854775805`}},
		{imports.TinyID, "old.tiny ids", []imports.Row{
			{Place: "postgres/old.tiny ids, row 1 (order)", Name: "order", Next: 501,
				Step: 100, Delta: 2, Remainder: 1},
			{Place: "postgres/old.tiny ids, row 2 (order)", Name: "order", Next: 401, Step: 100, Delta: 2},
		}, []string{`postgres/old.tiny ids, row 3: biz_type: "NULL"; allowed: a name`}},
		{imports.CosID, "", []imports.Row{{Place: "postgres/cosid, row 1 (shop.order)", Name: "shop.order",
			Next: 21, Delta: 1}}, nil},
	} {
		rows, bad, err := imports.ReadPostgres(t.Context(), dsn, c.table, c.system)
		if err != nil {
			t.Errorf("%s: %v", c.system.Name, err)
		}
		if diff := cmp.Diff(c.want, rows); diff != "" {
			t.Errorf("%s (-want +got)\n%s", c.system.Name, diff)
		}
		if got := messages(bad); !slices.Equal(got, c.bad) {
			t.Errorf("%s: bad %q, want %q", c.system.Name, got, c.bad)
		}
	}
	for _, c := range []struct {
		dsn, table string
		system     *imports.System
		kind       allocator.Kind
	}{
		{dsn, "", imports.TinyID, allocator.NotFound},
		{dsn, "other", imports.CosID, allocator.Invalid},
		{strings.Replace(dsn, "march@", "reader@", 1), "", imports.Leaf, allocator.Denied},
		{strings.Replace(dsn, "march@", "nobody@", 1), "", imports.Leaf, allocator.Unauthenticated},
		{dsn + "2", "", imports.Leaf, allocator.NotFound},
		{dsn, "", imports.Redis, allocator.Invalid},
		{"postgres://march@127.0.0.1:x/", "", imports.Leaf, allocator.Invalid},
		{"postgres://march@127.0.0.1:1/", "", imports.Leaf, allocator.Unavailable},
	} {
		if _, _, err := imports.ReadPostgres(t.Context(), c.dsn, c.table, c.system); allocator.KindOf(err) != c.kind {
			t.Errorf("%s %s %s: %v; want %v", c.dsn, c.table, c.system.Name, err, c.kind)
		}
	}
}

// TestReadRedis reads counters among other keys, more than a scan returns at once.
func TestReadRedis(t *testing.T) {
	t.Parallel()
	const many = 5000
	address := testservers.Redis(t)
	client := redis.NewClient(&redis.Options{Addr: address, DB: 2})
	defer func() { _ = client.Close() }()
	pipe := client.Pipeline()
	for i := range many {
		pipe.IncrBy(t.Context(), fmt.Sprintf("id:%d", i), int64(i+1))
	}
	pipe.Set(t.Context(), "id:text", "abc", 0)
	pipe.Set(t.Context(), "id:long", strings.Repeat("9", 2<<20), 0)
	pipe.LPush(t.Context(), "id:list", "1")
	pipe.Set(t.Context(), "other", "7", 0)
	pipe.IncrBy(t.Context(), "cosid:{shop.order}.adder", 20)
	pipe.Set(t.Context(), "cosid:{shop.order}.other", "x", 0)
	if _, err := pipe.Exec(t.Context()); err != nil {
		t.Fatal(err)
	}
	rows, bad, err := imports.ReadRedis(t.Context(), "redis://"+address+"/2", "id:*", imports.Redis)
	if err != nil {
		t.Fatal(err)
	}
	next := make(map[string]int64)
	for _, r := range rows {
		next[r.Name] = r.Next
	}
	if len(rows) != many || len(next) != many {
		t.Errorf("%d rows of %d names; want %d", len(rows), len(next), many)
	}
	for i := range many {
		if name := fmt.Sprintf("id:%d", i); next[name] != int64(i+2) {
			t.Fatalf("%s: next is %d; want %d", name, next[name], i+2)
		}
	}
	got := messages(bad)
	slices.Sort(got)
	const allowed = "; allowed: a whole number, 0 to 9223372036854775805"
	want := []string{
		`key "id:list": value: "NULL"` + allowed, `key "id:long": value: "` + strings.Repeat("9", 32) + `"` + allowed,
		`key "id:text": value: "abc"` + allowed,
	}
	if !slices.Equal(got, want) {
		t.Errorf("bad:\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}

	rows, bad, err = imports.ReadRedis(t.Context(), "redis://"+address+"/2", "", imports.CosID)
	if err != nil || len(bad) > 0 || len(rows) != 1 || rows[0].Name != "shop.order" || rows[0].Next != 21 {
		t.Errorf("cosid: %v, %v, %v", rows, messages(bad), err)
	}
	if err := client.Do(t.Context(), "ACL", "SETUSER", "reader", "on", ">geheim", "~*", "+get", "+getrange", "+scan",
		"+select").Err(); err != nil {
		t.Fatal(err)
	}
	for source, kind := range map[string]allocator.Kind{
		"redis://reader:geheim@" + address + "/2": 0,
		"redis://reader:wrong@" + address:         allocator.Refused,
		"redis://" + address + "/99":              allocator.Refused,
		"redis://" + address + "/x":               allocator.Refused,
		"redis://127.0.0.1:1":                     allocator.Unavailable,
		"rediss://127.0.0.1:1":                    allocator.Unavailable,
		"http://" + address:                       allocator.Invalid,
		"redis://":                                allocator.Invalid,
	} {
		switch _, _, err := imports.ReadRedis(t.Context(), source, "other", imports.Redis); {
		case kind == 0 && err != nil, kind != 0 && allocator.KindOf(err) != kind:
			t.Errorf("%s: %v; want %v", source, err, kind)
		case err != nil && strings.Contains(err.Error(), "wrong@"):
			t.Errorf("%s: the error has the password: %v", source, err)
		}
	}
	for _, s := range []*imports.System{imports.Redis, imports.Leaf} {
		if _, _, err := imports.ReadRedis(t.Context(), "redis://"+address, "",
			s); allocator.KindOf(err) != allocator.Invalid {
			t.Errorf("%s without a pattern: %v", s.Name, err)
		}
	}
}

// TestReadRedisNotRedis: a server that answers as no Redis does is none.
func TestReadRedisNotRedis(t *testing.T) {
	t.Parallel()
	for _, answer := range []string{"HTTP/1.1 400 Bad Request\r\n\r\n", "*2\r\n$1\r\n0\r\n:5\r\n", "*1\r\n$1\r\n0\r\n",
		"$99999999\r\n", "+OK\r\n", "\r\n", strings.Repeat("x", 10000), ""} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		served := make(chan struct{})
		go func() {
			defer close(served)
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Read(make([]byte, 100))
			_, _ = conn.Write([]byte(answer))
			_ = conn.Close()
		}()
		_, _, err = imports.ReadRedis(t.Context(), "redis://"+l.Addr().String(), "*", imports.Redis)
		if allocator.KindOf(err) != allocator.Unavailable {
			t.Errorf("answer %.20q: %v", answer, err)
		}
		_ = l.Close()
		<-served
	}
}

// TestReadRedisStops: a caller that stops waiting for a silent server gets its answer.
func TestReadRedisStops(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan struct{})
	go func() {
		defer close(served)
		conn, err := l.Accept()
		if err != nil {
			return
		}
		_, _ = conn.Read(make([]byte, 100))
		cancel()
		_, _ = conn.Read(make([]byte, 100)) // until the other side closes
		_ = conn.Close()
	}()
	if _, _, err = imports.ReadRedis(ctx, "redis://"+l.Addr().String(), "*",
		imports.Redis); allocator.KindOf(err) != allocator.Unavailable {
		t.Error(err)
	}
	<-served
}
