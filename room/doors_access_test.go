package room_test

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/gomodule/redigo/redis"

	"github.com/march-id/march/internal/testcluster"
	"github.com/march-id/march/room"
)

const doorRules = `grants:
  - {subjects: "token:shop", roles: issuer, tags: [order, cart]}
  - {subjects: "token:few", roles: issuer, tags: order, quotas: {ids_per_lease: 5}}
  - {subjects: anonymous, roles: issuer, tags: public}
`

// A room's policy holds at each door: for tokens of AUTH and of TinyId, for the header of
// clients over HTTP, and for callers without any.
func TestDoorsUnderPolicy(t *testing.T) {
	t.Parallel()
	c := newCluster(t, testcluster.Halves())
	c.tag(nil, "order", "secret", "public", "ns.order")
	lines, tokens := tokensOf(t, "shop", "few")
	gate := gateOf(t, nil, doorRules, lines)
	doors := room.Doors{Redis: testcluster.Listen(c, ""), Leaf: testcluster.Listen(c, ""),
		TinyID: testcluster.Listen(c, ""), CosID: testcluster.Listen(c, "")}
	c.start("a", "a1", func(cfg *room.Config) { cfg.Doors, cfg.Access, cfg.CreateTags = doors, gate, true })

	client := func(user, token string) *redisClient {
		return newRedisClient(t, doors.Redis.Addr(), redis.DialUsername(user), redis.DialPassword(token))
	}
	shop, few, nobody := client("", tokens["shop"]), client("any", tokens["few"]), client("", "")
	for want := int64(1); want < 3; want++ {
		if id, err := shop.id("INCR", "order"); err != nil || id != want {
			t.Errorf("shop: %d, %v; want %d", id, err, want)
		}
	}
	if _, err := few.id("INCRBY", "order", 5); err != nil {
		t.Errorf("few: %v", err)
	}
	if id, err := nobody.id("INCR", "public"); err != nil || id != 1 {
		t.Errorf("anonymous: %d, %v", id, err)
	}
	for what, want := range map[string]struct {
		err  error
		says string
	}{
		"no right":          {shop.err("INCR", "secret"), "NOPERM march: "},
		"no right to read":  {shop.err("GET", "secret"), "NOPERM march: "},
		"no right to make":  {shop.err("SET", "cart", 1, "NX"), "NOPERM march: "},
		"above the quota":   {few.err("INCRBY", "order", 6), "NOPERM march: "},
		"anonymous":         {nobody.err("INCR", "order"), "NOAUTH Authentication required."},
		"wrong token":       {client("", "wrong").err("INCR", "order"), "WRONGPASS "},
		"wrong with a name": {client("shop", "wrong").err("INCR", "order"), "WRONGPASS "},
		"wrong, then AUTH":  {nobody.err("AUTH", "wrong"), "WRONGPASS "},
		"empty":             {nobody.err("AUTH", ""), "WRONGPASS "},
	} {
		if want.err == nil || !strings.HasPrefix(want.err.Error(), want.says) {
			t.Errorf("%s: %v; want %s", what, want.err, want.says)
		}
	}
	// RESET forgets the subject, as in Redis.
	one := client("", tokens["shop"])
	if err := errors.Join(one.err("INCR", "order"), one.err("RESET")); err != nil {
		t.Error(err)
	}
	if err := one.err("INCR", "order"); err == nil || !strings.HasPrefix(err.Error(), "NOAUTH ") {
		t.Errorf("after RESET: %v", err)
	}

	d := webDoors{t, "http://" + doors.Leaf.Addr().String(), "http://" + doors.TinyID.Addr().String(),
		"http://" + doors.CosID.Addr().String()}
	tiny := func(call, token, key string) string {
		_, _, body := d.ask("POST", d.tinyid+"/tinyid/id/"+call+"?bizType="+key+"&token="+token, "")
		return body
	}
	if body := tiny("nextIdSimple", tokens["shop"], "order"); body == "" {
		t.Error("tinyid: no ID for the token of a subject that may take it")
	}
	const refused = `{"data":null,"code":5,"message":"token is error"}`
	for _, body := range []string{
		tiny("nextId", tokens["shop"], "secret"), tiny("nextId", "wrong", "order"), tiny("nextId", "", "public"),
	} {
		if body != refused {
			t.Errorf("tinyid: %s", body)
		}
	}
	for token, want := range map[string]int{"": http.StatusInternalServerError, tokens["shop"]: http.StatusOK,
		"wrong": http.StatusUnauthorized} {
		status, _, _ := request(t, http.MethodGet, d.leaf+"/api/segment/get/order", token, "")
		if status != want {
			t.Errorf("leaf with %.8q: %d; want %d", token, status, want)
		}
	}
	if status, _, _ := d.ask("PATCH", d.cosid+"/segments/ns/order?step=1",
		""); status != http.StatusInternalServerError {
		t.Errorf("cosid, anonymous: %d", status)
	}
	if _, err := nobody.id("INCR", "public"); err != nil {
		t.Error(err)
	}
}

// Without etcd the doors go on with what is held, then each says in its own words that there is nothing.
func TestDoorsEtcdAway(t *testing.T) {
	t.Parallel()
	c := newCluster(t, testcluster.Halves())
	c.tag(nil, "ns.order", "cold", "ns.cold")
	_, d := c.withDoors(t, "a", false)
	_, client := c.withRedis("a", "a2", false)
	for _, held := range []bool{true, false} { // of etcd
		if !held {
			c.Etcd.Stop()
		}
		if err := client.err("INCR", "ns.order"); err != nil {
			t.Errorf("redis, etcd there: %t: %v", held, err)
		}
		if status, _, id := d.ask("GET", d.leaf+"/api/segment/get/ns.order", ""); status != http.StatusOK {
			t.Errorf("leaf, etcd there: %t: %d %s", held, status, id)
		}
	}
	if err := client.err("INCR", "cold"); err == nil || !strings.HasPrefix(err.Error(), "TRYAGAIN march: ") {
		t.Errorf("redis: %v", err)
	}
	if status, _, body := d.ask("GET", d.leaf+"/api/segment/get/cold", ""); status != http.StatusServiceUnavailable ||
		!strings.Contains(body, "Result{id=-3, status=EXCEPTION}") {
		t.Errorf("leaf: %d %s", status, body)
	}
	if status, _, body := d.ask("POST", d.tinyid+"/tinyid/id/nextSegmentId?token=secret&bizType=cold",
		""); status != http.StatusServiceUnavailable || !strings.HasPrefix(body, `{"data":null,"code":6,"message":"`) {
		t.Errorf("tinyid: %d %s", status, body)
	}
	if status, _, body := d.ask("POST", d.tinyid+"/tinyid/id/nextSegmentIdSimple?token=secret&bizType=cold",
		""); status != http.StatusServiceUnavailable || body != "" {
		t.Errorf("tinyid, simple: %d %s", status, body)
	}
	if status, _, body := d.ask("PATCH", d.cosid+"/segments/ns/cold?step=20",
		""); status != http.StatusServiceUnavailable || !strings.HasPrefix(body, `{"code":"500","msg":"march: `) {
		t.Errorf("cosid: %d %s", status, body)
	}
}

// Clients that keep their segments get none of a tag with a period; INCR counts it.
func TestDoorsOfPeriods(t *testing.T) {
	t.Parallel()
	c := newCluster(t, testcluster.Halves())
	c.tag(daily, "ns.day")
	_, d := c.withDoors(t, "a", false)
	_, client := c.withRedis("b", "b1", false)
	if id, err := client.id("INCR", "ns.day"); err != nil || id < 2026_01_01*1_000_000_000 {
		t.Errorf("incr: %d, %v", id, err)
	}
	const why = "tag ns.day has a period: "
	if _, _, body := d.ask("POST", d.tinyid+"/tinyid/id/nextSegmentId?token=secret&bizType=ns.day",
		""); !strings.HasPrefix(body, `{"data":null,"code":6,"message":"`+why) {
		t.Errorf("tinyid: %s", body)
	}
	if status, _, body := d.ask("PATCH", d.cosid+"/segments/ns/day?step=20", ""); status != http.StatusBadRequest ||
		!strings.HasPrefix(body, `{"code":"500","msg":"march: `+why) {
		t.Errorf("cosid: %d %s", status, body)
	}
}
