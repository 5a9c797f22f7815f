package room_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/internal/testcluster"
	"github.com/march-id/march/room"
	"github.com/march-id/march/room/tinyid"
)

// webDoors are the addresses of an instance's doors that speak HTTP.
type webDoors struct {
	*testing.T
	leaf, tinyid, cosid string
}

// withDoors starts an instance with doors.
func (c *cluster) withDoors(t *testing.T, in allocator.Room, create bool) (*instance, webDoors) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "tokens")
	if err := os.WriteFile(path, []byte("# token bizType\nsecret *\nother order\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	tokens, err := tinyid.OpenTokens(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	doors := room.Doors{Leaf: testcluster.Listen(c, ""), TinyID: testcluster.Listen(c, ""),
		CosID: testcluster.Listen(c, ""), LeafSnowflake: "event", TinyIDTokens: tokens}
	i := c.start(in, allocator.Instance(in)+"1", func(cfg *room.Config) { cfg.Doors, cfg.CreateTags = doors, create })
	return i, webDoors{t, "http://" + doors.Leaf.Addr().String(), "http://" + doors.TinyID.Addr().String(),
		"http://" + doors.CosID.Addr().String()}
}

// ask sends a request and returns the answer.
func (d webDoors) ask(method, url, form string) (status int, contentType, body string) {
	d.Helper()
	r, err := http.NewRequestWithContext(d.Context(), method, url, strings.NewReader(form))
	if err != nil {
		d.Fatal(err)
	}
	if form != "" {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	answer, err := testcluster.Client().Do(r)
	if err != nil {
		d.Fatal(err)
	}
	defer func() { _ = answer.Body.Close() }()
	b, err := io.ReadAll(answer.Body)
	if err != nil {
		d.Fatal(err)
	}
	return answer.StatusCode, answer.Header.Get("Content-Type"), string(b)
}

// exchanges are requests, each with its whole answer; a time stands there as TIME.
func (d webDoors) exchanges(at string, all [][4]string) {
	d.Helper()
	times := regexp.MustCompile(`"timestamp":1[0-9]{12},`)
	for _, e := range all {
		method, path, _ := strings.Cut(e[0], " ")
		status, contentType, body := d.ask(method, at+path, e[1])
		got := fmt.Sprintf("%d %s", status, contentType)
		if body = times.ReplaceAllString(body, `"timestamp":TIME,`); got != e[2] || body != e[3] {
			d.Errorf("%s %s:\n%s %s\nwant\n%s %s", e[0], e[1], got, body, e[2], e[3])
		}
	}
}

const (
	plain      = "200 text/plain;charset=UTF-8"
	jsonOK     = "200 application/json;charset=UTF-8"
	jsonFailed = "500 application/json;charset=UTF-8"
	jsonBad    = "400 application/json;charset=UTF-8"
)

func TestLeafDoor(t *testing.T) {
	t.Parallel()
	c := newCluster(t, testcluster.Halves())
	c.tag(nil, "order", "0_30_4frder.x")
	c.tag(timed(cosid), "event")
	c.tag(func(s *record.TagSettings) { s.Limit = 2 }, "few")
	_, d := c.withDoors(t, "a", false)
	failed := func(code int, path string) string {
		return fmt.Sprintf(`{"timestamp":TIME,"status":500,"error":"Internal Server Error","exception":"com.sankuai.inf.leaf.server.exception.LeafServerException","message":"Result{id=%d, status=EXCEPTION}","path":%q}`, code, path)
	}
	decoded := "1567733700834(" + time.UnixMilli(1567733700834).Format("2006-01-02 15:04:05.000") + ")"
	d.exchanges(d.leaf, [][4]string{
		{"GET /api/segment/get/order", "", plain, "1"},
		{"POST /api/segment/get/order", "", plain, "2"},
		{"GET /api/segment/get/Order.x", "", plain, "1"},
		{"GET /api/segment/get/few", "", plain, "1"},
		{"GET /api/segment/get/few", "", jsonFailed, failed(-3, "/api/segment/get/few")},
		{"GET /api/segment/get/nosuch", "", jsonFailed, failed(-2, "/api/segment/get/nosuch")},
		{"GET /api/segment/get/" + strings.Repeat("x", 100), "", jsonFailed,
			failed(-2, "/api/segment/get/"+strings.Repeat("x", 100))},
		{"GET /api/segment/get/", "", "404 application/json;charset=UTF-8",
			`{"timestamp":TIME,"status":404,"error":"Not Found","message":"No message available","path":"/api/segment/get/"}`},
		{"GET /api/segment/get/a/b", "", "404 application/json;charset=UTF-8",
			`{"timestamp":TIME,"status":404,"error":"Not Found","message":"No message available","path":"/api/segment/get/a/b"}`},
		{"GET /api/segment/get/a%2Fb", "", jsonFailed, failed(-2, "/api/segment/get/a/b")},
		{"GET /decodeSnowflakeId?snowflakeId=1169786042799259000", "", jsonOK,
			`{"timestamp":"` + decoded + `","sequenceId":"3448","workerId":"39"}`},
		{"GET /decodeSnowflakeId?snowflakeId=x", "", jsonOK, `{"errorMsg":"snowflake Id反解析发生异常!"}`},
		{"GET /decodeSnowflakeId", "", jsonBad,
			`{"timestamp":TIME,"status":400,"error":"Bad Request","exception":"org.springframework.web.bind.MissingServletRequestParameterException","message":"Required String parameter 'snowflakeId' is not present","path":"/decodeSnowflakeId"}`},
	})
	// The tag of Leaf's Snowflake has to be one of time-ordered IDs, and is not made.
	counter := room.Doors{Leaf: testcluster.Listen(c, ""), LeafSnowflake: "order"}
	c.start("b", "b1", func(cfg *room.Config) { cfg.Doors = counter })
	none := room.Doors{Leaf: testcluster.Listen(c, ""), LeafSnowflake: "nosuch"}
	c.start("b", "b2", func(cfg *room.Config) { cfg.Doors, cfg.CreateTags = none, true })
	for _, doors := range []room.Doors{counter, none} {
		d.exchanges("http://"+doors.Leaf.Addr().String(),
			[][4]string{{"GET /api/snowflake/get/any", "", jsonFailed, failed(-2, "/api/snowflake/get/any")}})
	}
	seen := map[string]bool{}
	for range 100 {
		_, _, id := d.ask("GET", d.leaf+"/api/snowflake/get/any", "")
		if n, err := strconv.ParseInt(id, 10, 64); err != nil || n < 1<<40 || seen[id] {
			t.Fatalf("snowflake: %q, %v, seen %t", id, err, seen[id])
		}
		seen[id] = true
	}
}

func TestTinyIDDoor(t *testing.T) {
	t.Parallel()
	c := newCluster(t, testcluster.Halves())
	c.tag(func(s *record.TagSettings) { s.MinStep = 20 }, "order")
	c.tag(nil, "user_5f_2f")
	c.tag(func(s *record.TagSettings) { s.StrictRetract = true }, "strict")
	_, d := c.withDoors(t, "a", false)
	const params = "?token=secret&bizType=order"
	d.exchanges(d.tinyid, [][4]string{
		{"POST /tinyid/id/nextSegmentIdSimple" + params, "", plain, "0,4,20,1,0"},
		{"GET /tinyid/id/nextSegmentId" + params, "", jsonOK,
			`{"data":{"maxId":40,"loadingId":24,"currentId":20,"delta":1,"remainder":0},"code":200,"message":""}`},
		{"POST /tinyid/id/nextIdSimple", "token=secret&bizType=order", plain, "41"},
		{"GET /tinyid/id/nextIdSimple" + params + "&batchSize=3", "", plain, "42,43,44"},
		{"GET /tinyid/id/nextId" + params + "&batchSize=2", "", jsonOK, `{"data":[45,46],"code":200,"message":""}`},
		{"GET /tinyid/id/nextId?token=other&bizType=order", "", jsonOK, `{"data":[47],"code":200,"message":""}`},
		{"GET /tinyid/id/nextId" + params + "&batchSize=0", "", jsonOK, `{"data":[],"code":200,"message":""}`},
		{"GET /tinyid/id/nextIdSimple" + params + "&batchSize=-1", "", plain, ""},
		{"GET /tinyid/id/nextId?token=wrong&bizType=order", "", jsonOK,
			`{"data":null,"code":5,"message":"token is error"}`},
		{"GET /tinyid/id/nextId?token=other&bizType=strict", "", jsonOK,
			`{"data":null,"code":5,"message":"token is error"}`},
		{"GET /tinyid/id/nextIdSimple?token=wrong&bizType=order", "", plain, ""},
		{"GET /tinyid/id/nextIdSimple?token=secret&bizType=nosuch", "", plain, ""},
		{"GET /tinyid/id/nextSegmentId?token=secret&bizType=strict", "", jsonOK,
			`{"data":null,"code":6,"message":"tag strict is strict: a caller that keeps its IDs would go on with them after their range is another room's"}`},
		{"GET /tinyid/id/nextId" + params + "&batchSize=x", "", jsonBad,
			`{"timestamp":TIME,"status":400,"error":"Bad Request","exception":"org.springframework.web.method.annotation.MethodArgumentTypeMismatchException","message":"Failed to convert value of type 'java.lang.String' to required type 'java.lang.Integer'; nested exception is java.lang.NumberFormatException: For input string: \"x\"","path":"/tinyid/id/nextId"}`},
	})
	if _, _, body := d.ask("GET", d.tinyid+"/tinyid/id/nextIdSimple"+params+"&batchSize=1000000",
		""); strings.Count(body, ",") != 100_000-1 {
		t.Errorf("a batch above the most: %d IDs", strings.Count(body, ",")+1)
	}
}

func TestCosIdDoor(t *testing.T) {
	t.Parallel()
	c := newCluster(t, testcluster.Halves())
	c.tag(nil, "ns.order", "plain")
	_, d := c.withDoors(t, "a", true)
	failed := func(message string) string { return `{"code":"500","msg":` + strconv.Quote(message) + `,"errors":[]}` }
	d.exchanges(d.cosid, [][4]string{
		{"PATCH /segments/ns/order?step=20", "", "200 application/json", "20"},
		{"PATCH /segments/ns/order?step=20", "", "200 application/json", "40"},
		{"PATCH /segments/ns/order?step=20", "", "200 application/json", "119"}, // 41 to 49 are too few
		{"PATCH /segments/ns/order?step=51", "", jsonBad,
			failed("march: step: 51; allowed: 1 to 50, as no more of the room's range lie in a row")},
		{"PATCH /segments/ns/order?step=0", "", jsonBad, failed(`march: step: "0"; allowed: 1 to 9223372036854775807`)},
		{"PATCH /segments/ns/order?step=x", "", jsonFailed,
			failed(`march: step: "x"; allowed: 1 to 9223372036854775807`)},
		{"PATCH /segments/ns/order", "", jsonFailed, failed(`march: step: ""; allowed: 1 to 9223372036854775807`)},
		{"POST /segments/distributor/ns/fresh?offset=1000&step=10", "", "200 ", ""},
		{"POST /segments/distributor/ns/fresh?offset=5&step=10", "", "200 ", ""}, // there is one
		{"PATCH /segments/ns/fresh?step=10", "", "200 application/json", "1010"},
		{"PATCH /segments/ns/never@2026?step=10", "", "200 application/json", "10"},
		{"GET /ids/plain", "", "200 application/json", "1"},
		{"GET /ids/as-string/plain", "", plain, "2"},
		{"GET /ids", "", "200 application/json", "1"},
		{"GET /actuator/health", "", jsonOK, `{"status":"UP"}`},
		{"POST /machines/ns?machineBit=10&instanceId=h:1&stable=false&safeGuardDuration=PT5M", "", jsonFailed,
			failed("march: this room has no machine IDs; start it with --cosid-machines NAME, " +
				"or take time-ordered IDs from a tag of kind time")},
		{"GET /nosuch", "", jsonFailed, failed("march: GET /nosuch is not served")},
	})
}

// Callers of all doors while the ranges move, Redis' one by one, which loops serve, and in runs: no ID comes twice,
// no call of Redis fails, and a segment that was given before the move stays whole.
func TestDoorsWhileRangesMove(t *testing.T) {
	t.Parallel()
	c := newCluster(t, testcluster.Halves())
	c.tag(nil, "ns.order")
	_, a := c.withDoors(t, "a", false)
	_, b := c.withDoors(t, "b", false)
	one, first := c.withRedis("a", "a2", false)
	_, second := c.withRedis("b", "b2", false)
	var mu sync.Mutex
	owner := map[int64]string{}
	took := func(by string, first, last int64) {
		mu.Lock()
		defer mu.Unlock()
		for id := first; id <= last; id++ {
			if other, ok := owner[id]; ok {
				t.Errorf("ID %d was given to %s and to %s", id, other, by)
			}
			owner[id] = by
		}
	}
	taken := func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(owner)
	}
	ctx, stop := context.WithCancel(t.Context())
	var callers sync.WaitGroup
	for _, d := range []webDoors{a, b} {
		callers.Go(func() {
			for ctx.Err() == nil {
				if _, _, id := d.ask("GET", d.leaf+"/api/segment/get/ns.order", ""); id != "" {
					if n, err := strconv.ParseInt(id, 10, 64); err == nil {
						took("leaf", n, n)
					}
				}
				if _, _, s := d.ask("POST", d.tinyid+"/tinyid/id/nextSegmentIdSimple?token=secret&bizType=ns.order",
					""); s != "" {
					part := strings.Split(s, ",")
					current, _ := strconv.ParseInt(part[0], 10, 64)
					last, _ := strconv.ParseInt(part[2], 10, 64)
					took("tinyid", current+1, last)
				}
				if status, _, s := d.ask("PATCH", d.cosid+"/segments/ns/order?step=7", ""); status == http.StatusOK {
					last, _ := strconv.ParseInt(s, 10, 64)
					took("cosid", last-6, last)
				}
			}
		})
	}
	for k, client := range []*redisClient{first, first.another(), second, second.another()} {
		callers.Go(func() {
			for n := int64(1); ctx.Err() == nil; n = n%20 + 1 {
				command, args := "INCRBY", []any{"ns.order", n}
				if k%2 == 0 {
					n, command, args = 1, "INCR", args[:1]
				}
				last, err := client.id(command, args...)
				if err != nil && strings.HasSuffix(err.Error(), "etcd does not answer; retry later") {
					continue // the machine is busy; no move does that
				}
				if err != nil {
					t.Errorf("incrby %d: %v", n, err)
					return
				}
				took("redis", last-n+1, last)
			}
		})
	}
	for _, border := range []int64{30, 60, 50} {
		before := taken()
		version := c.Change(layout(100, map[allocator.Room]allocator.Range{"a": {Upper: border - 5},
			"b": {Lower: border, Upper: 100}}), "test")
		one.await("the layout is served", func() bool {
			return c.registered("a", "a2").Version == version && c.registered("b", "b2").Version == version
		})
		await(t, "callers go on", func() bool { return taken() > before+1000 })
	}
	stop()
	callers.Wait()
}

// A GET takes IDs at these doors, so a page of another site has no browser take any, neither by an image nor under a
// name that it points at this machine. Other systems' own clients send no such header.
func TestWebDoorsAndOtherSites(t *testing.T) {
	t.Parallel()
	c := newCluster(t, testcluster.Halves())
	c.tag(nil, "order")
	_, d := c.withDoors(t, "a", false)
	for _, at := range []string{d.leaf + "/api/segment/get/order",
		d.tinyid + "/tinyid/id/nextIdSimple?bizType=order&token=secret", d.cosid + "/segments/order/order?step=1"} {
		for _, header := range []string{"Sec-Fetch-Site: cross-site", "Sec-Fetch-Site: same-site",
			"Origin: http://evil.example", "Origin: null", "Host: evil.example"} {
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, at, nil)
			if err != nil {
				t.Fatal(err)
			}
			name, value, _ := strings.Cut(header, ": ")
			if r.Header.Set(name, value); name == "Host" {
				r.Host = value
			}
			answer, err := testcluster.Client().Do(r)
			if err != nil {
				t.Fatal(err)
			}
			_ = answer.Body.Close()
			want := map[bool]int{true: http.StatusMisdirectedRequest, false: http.StatusForbidden}[name == "Host"]
			if answer.StatusCode != want {
				t.Errorf("%s with %s: %s", at, header, answer.Status)
			}
		}
	}
	if _, _, id := d.ask("GET", d.leaf+"/api/segment/get/order", ""); id != "1" {
		t.Errorf("the first ID that a client gets is %s", id)
	}
}
