package room_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/internal/access"
	"github.com/march-id/march/internal/testcluster"
	"github.com/march-id/march/room"
)

// withMachines starts an instance with a door for CosId that has machine IDs, and returns the
// door's address.
func (c *cluster) withMachines(t *testing.T, in allocator.Room, name allocator.Instance) webDoors {
	t.Helper()
	// One address asks for all clients of all tests: its share is all that there is.
	return c.machinesUnder(t, in, name,
		gateOf(t, nil, "grants: [{subjects: anonymous, roles: issuer, quotas: {worker_share: 100}}]\n", ""))
}

// machinesUnder is withMachines under a policy.
func (c *cluster) machinesUnder(t *testing.T, in allocator.Room, name allocator.Instance, g *access.Gate) webDoors {
	t.Helper()
	doors := room.Doors{CosID: testcluster.Listen(c, ""), CosIDMachines: "cosid"}
	c.start(in, name, func(cfg *room.Config) { cfg.Doors, cfg.Access = doors, g })
	return webDoors{T: t, cosid: "http://" + doors.CosID.Addr().String()}
}

// Every answer of cosid-proxy's machine endpoints, byte for byte. The range [20, 60) mod 100
// has with two bits one number, with three bits 2 to 4.
func TestCosIDMachines(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		const ok, refused, failed = "200 ", "400 application/json;charset=UTF-8", "500 application/json;charset=UTF-8"
		of := func(code, msg string) string {
			return fmt.Sprintf(`{"code":%q,"msg":"march: %s","errors":[]}`, code, msg)
		}
		c := newCluster(t, allocator.Layout{
			Boundary: 100, Ranges: map[allocator.Room]allocator.Range{"a": {Lower: 0, Upper: 20},
				"b": {Lower: 60, Upper: 100}},
			Reserved: map[allocator.Room]allocator.Range{"cosid": {Lower: 20, Upper: 60}},
		})
		a, b := c.withMachines(t, "a", "a1"), c.withMachines(t, "b", "b1")
		number := func(d webDoors, query string, want int) {
			t.Helper()
			status, kind, body := d.ask("POST", d.cosid+"/machines/ns?"+query, "")
			var got, last int64
			_, err := fmt.Sscanf(body, `{"machineId":%d,"lastTimeStamp":%d}`, &got, &last)
			if status != http.StatusOK || kind != "application/json" || err != nil || got != int64(want) ||
				body != fmt.Sprintf(`{"machineId":%d,"lastTimeStamp":%d}`, got, last) || last < 1_600_000_000_000 {
				t.Errorf("%s: %d %s %s, %v; want machine %d", query, status, kind, body, err, want)
			}
		}
		const forever = "&stable=false&safeGuardDuration=PT2562047788015H12M55.807S"
		number(a, "machineBit=3&instanceId=h:1"+forever, 2)
		number(b, "machineBit=3&instanceId=h:2&stable=true&safeGuardDuration=PT5M", 3)
		number(b, "machineBit=3&instanceId=h:1"+forever, 2) // its own one, of whichever room
		number(a, "machineBit=3&instanceId=h:3"+forever, 4)
		overflow := of("M-01", "all machine IDs of the range are in use")
		lost := of("M-02", "this client has no machine ID")
		a.exchanges(a.cosid, [][4]string{
			{"POST /machines/ns?machineBit=3&instanceId=h:4" + forever, "", refused, overflow},
			// all namespaces share the numbers
			{"POST /machines/other?machineBit=3&instanceId=h:1" + forever, "", refused, overflow},
			{"PATCH /machines/ns?instanceId=h:1" + forever, "", ok, ""},
			{"PATCH /machines/ns?instanceId=h:1&stable=false", "", ok, ""},
			{"PATCH /machines/ns?instanceId=nosuch" + forever, "", refused, lost},
			{"PATCH /machines/other?instanceId=h:1" + forever, "", refused, lost},
			// the original's 400 is thrown as a client ends
			{"DELETE /machines/ns?instanceId=nosuch&stable=false", "", ok, ""},
			{"DELETE /machines/ns?instanceId=h:1&stable=false", "", ok, ""},
			{"DELETE /machines/ns?instanceId=h:1&stable=false", "", ok, ""},
			{"DELETE /machines/ns?instanceId=h:2&stable=true", "", ok, ""},
		})
		// No room takes another one's word that its client has ended.
		b.exchanges(b.cosid, [][4]string{
			{"POST /machines/ns?machineBit=3&instanceId=h:5" + forever, "", refused, overflow},
			{"DELETE /machines/ns?instanceId=h:1&stable=false", "", ok, ""},
		})
		number(b, "machineBit=3&instanceId=h:5"+forever, 2) // h:1 gave it back; h:2 keeps its own
		b.exchanges(b.cosid, [][4]string{
			{"POST /machines/ns?machineBit=3&instanceId=h:1" + forever, "", refused, overflow},
			{"POST /machines/ns?instanceId=h:1" + forever, "", failed, of("500", `machineBit: \"\"; allowed: 1 to 31`)},
			{"POST /machines/ns?machineBit=x&instanceId=h:1" + forever, "", failed,
				of("500", `machineBit: \"x\"; allowed: 1 to 31`)},
			{"POST /machines/ns?machineBit=32&instanceId=h:1" + forever, "", refused,
				of("500", "machineBit: 32; allowed: 1 to 31")},
			{"POST /machines/ns?machineBit=3" + forever, "", failed,
				of("500", `instanceId: \"\"; allowed: the client's name`)},
			{"POST /machines/ns?machineBit=3&instanceId=" + forever, "", refused,
				of("500", `instanceId: \"\"; allowed: 1 to 255 bytes of UTF-8`)},
			{"POST /machines/ns?machineBit=3&instanceId=h:1", "", failed,
				of("500", `stable: \"\"; allowed: true, false`)},
			{"POST /machines/ns?machineBit=3&instanceId=h:1&stable=maybe", "", failed,
				of("500", `stable: \"maybe\"; allowed: true, false`)},
			{"POST /machines/ns?machineBit=3&instanceId=h:1&stable=true&safeGuardDuration=5m", "", failed,
				of("500", `safeGuardDuration: \"5m\"; allowed: a duration of ISO 8601, such as PT5M`)},
			{"GET /machines/ns?instanceId=h:1", "", failed, of("500", "GET /machines/ns is not served")},
		})
		c.Change(allocator.Layout{Boundary: 100, Ranges: map[allocator.Room]allocator.Range{"a": {Lower: 0, Upper: 20},
			"b": {Lower: 20, Upper: 100}}}, "test")
		a.exchanges(a.cosid, [][4]string{
			{"PATCH /machines/ns?instanceId=h:5" + forever, "", refused,
				of("M-03", "the machine ID is no longer in the reserved range, or another client has it")},
		})
		status, _, body := a.ask("POST", a.cosid+"/machines/ns?machineBit=3&instanceId=h:5"+forever, "")
		if status != http.StatusBadRequest || !strings.Contains(body,
			"reserves no range cosid; reserve it with `march migrate plan --reserve cosid=LOWER-UPPER`") {
			t.Errorf("%d %s", status, body)
		}
		// A client cannot mend what stops all leasing. Before, it was told that it asked wrongly.
		layout, _ := c.Mem.Value("/march/default/layout")
		c.put("layouts/0000000000000000003", string(layout))
		time.Sleep(5 * time.Second) // until the instance has read it
		status, _, body = a.ask("POST", a.cosid+"/machines/ns?machineBit=3&instanceId=h:5"+forever, "")
		if status != http.StatusServiceUnavailable || !strings.Contains(body, "the layout in etcd cannot be used") {
			t.Errorf("%d %s", status, body)
		}
	})
}
