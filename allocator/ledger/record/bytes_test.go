package record_test

import (
	"cmp"
	"strings"
	"testing"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/allocator/plan"
)

// TestBytes holds the bytes of each kind of value. Other versions of the program read and
// compare them, so a change of these bytes is a change of a format.
func TestBytes(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 678_000_000, time.UTC)
	const big = 9007199254740993 // not a float64
	one := allocator.Layout{Version: 1, Boundary: 10,
		Ranges: map[allocator.Room]allocator.Range{"b": {Lower: 5, Upper: 9}, "a": {Lower: 0, Upper: 5}}}
	two := allocator.Layout{Version: 2, Boundary: big,
		Ranges: map[allocator.Room]allocator.Range{"a": {Lower: 0, Upper: 4}}}
	tag := record.Tag{Name: "t", TagSettings: record.DefaultTag(), Created: at}
	full := tag
	full.TagSettings = record.TagSettings{
		Start: big, Limit: allocator.MaxID, MaxJump: 1, MaxSkew: 2, StrictRetract: true,
		Skips:   map[allocator.Room]int64{"b": 4, "a": 3},
		MinStep: 5, MaxStep: 7, Reserve: "1m30s", Prescale: 6, PrescaleUntil: at,
		Format: "prefix(<) | decimal", KeyCheck: "0123456789abcdef",
	}
	full.LargestStep, full.BaseTotal = 8, 9
	migration := record.Migration{State: record.Running, From: one, Target: two, Actor: "ann <a@b.c>", Created: at,
		Updated: at, Nonce: "n", Log: []record.LogEntry{{Time: at, Text: "started"}}}
	moved := migration
	moved.State, moved.Abort, moved.Reached, moved.Hold, moved.NoWayBack = record.Paused, true, 2, "10m0s", "no"
	moved.Error, moved.ErrorSince = "etcd is <away>", at
	moved.Log = append(moved.Log[:1:1], record.LogEntry{Time: at, Text: "paused by ann", Kind: record.EventPaused})
	moved.Without = []record.Waiver{{Instance: "a/i", Incarnation: "x", Reached: 1}}
	moved.Moves = []record.Move{
		{Move: plan.Move{Kind: plan.Expand, Why: "w", Layout: one}, Made: at},
		{Move: plan.Move{Kind: plan.Retract, Why: "w", Layout: two, Loses: []allocator.Room{"b", "a"}}, Made: at,
			Hold: "1m0s", ClientsUntil: at},
		{Move: plan.Move{Kind: plan.Retract, Layout: two, Loses: []allocator.Room{"b"}}, Hold: "1.5s"},
		{Move: plan.Move{Kind: plan.Expand, Layout: two}},
	}
	const (
		oneText = `{"version":"1","boundary":"10","rooms":{"a":{"lower":"0","upper":"5"},"b":{"lower":"5","upper":"9"}}}`
		twoText = `{"version":"2","boundary":"9007199254740993","rooms":{"a":{"lower":"0","upper":"4"}}}`
		time0   = `"2026-01-02T03:04:05.678Z"`
		oldLog  = `"log":[{"time":` + time0 + `,"text":"started"}],` // as a console that knows no kinds writes it
		newLog  = `"log":[{"time":` + time0 + `,"text":"started"},{"time":` + time0 +
			`,"text":"paused by ann","kind":"paused"}],`
		lastWords = `"actor":"ann <a@b.c>","created":` + time0 + `,"updated":` + time0 + `,"nonce":"n"`
	)
	beat := record.NewBeat(store.Status{RaftIndex: 1 << 63, RaftTerm: 2, Revision: big}, at)
	for name, test := range map[string]struct {
		got  []byte
		want string
	}{
		"tenure": {record.Encode(&record.Holder{Instance: "i", Incarnation: "c", Address: "h:1", Epoch: "e", Nonce: "n",
			Taken: at, Hold: record.DefaultTenureHold, Released: true,
			Rest: &record.Era{Version: 1, Epoch: "e", First: big, End: allocator.MaxID}}),
			`{"format":2,"instance":"i","incarnation":"c","address":"h:1","epoch":"e","nonce":"n","taken":` + time0 +
				`,"hold":"3s","released":true,"rest":{"version":"1","epoch":"e","first":"9007199254740993","end":"9223372036854775807"}}`},
		"identity": {record.Encode(&record.Identity{UUID: "u", ClusterID: 1 << 63}),
			`{"format":2,"uuid":"u","etcd_cluster_id":"9223372036854775808"}`},
		"epoch": {record.Encode(&record.Epoch{Epoch: "e"}), `{"format":2,"epoch":"e"}`},
		"epoch after a recover": {
			record.Encode(&record.Epoch{Epoch: "e", MarginTotal: 1, Layout: 2,
				Ended: &record.EndedHalt{Nonce: "n", Stopped: "d"}}),
			`{"format":2,"epoch":"e","margin_total":"1","layout":"2","ended":{"nonce":"n","stopped":"d"}}`,
		},
		"halt": {
			record.Encode(&record.Epoch{MarginTotal: 1, Halted: &record.Halt{By: "a/i", Why: "<w>", Time: at,
				Nonce: "n", Stopped: "e"}}),
			`{"format":2,"margin_total":"1","halted":{"by":"a/i","why":"<w>","time":` + time0 +
				`,"nonce":"n","stopped":"e"}}`,
		},
		"halt of nothing": {
			record.Encode(&record.Epoch{Halted: &record.Halt{By: "a/i", Time: at, Nonce: "n"}}),
			`{"format":2,"halted":{"by":"a/i","why":"","time":` + time0 + `,"nonce":"n"}}`,
		},
		"answered": {record.Encode(&record.Answered{Epoch: "e", Incarnations: []string{}}),
			`{"format":2,"epoch":"e","incarnations":[]}`},
		"beat": {record.Encode(&beat),
			`{"format":2,"raft_index":"9223372036854775808","raft_term":"2","revision":"9007199254740993","time":` +
				time0 + `}`},
		"settings": {record.Encode(&record.ClusterSettings{Nonce: "n"}),
			`{"format":2,"journal":"optional","nonce":"n"}`},
		"settings that require a journal": {record.Encode(&record.ClusterSettings{RequireJournal: true, Nonce: "n"}),
			`{"format":2,"journal":"required","nonce":"n"}`},
		"layout": {
			record.Layout{Layout: one, Ever: []allocator.Room{"a", "b", "c"}, Time: at, Actor: "ann", NarrowestRange: 4,
				LargestBoundary: 10, Revision: 7}.Encode("n"),
			`{"format":2,` + oneText[1:len(oneText)-1] + `,"ever":["a","b","c"],"time":` + time0 +
				`,"actor":"ann","nonce":"n","narrowest_range":"4","largest_boundary":"10"}`,
		},
		"tag": {
			tag.Encode("n"),
			`{"format":2,"start":"1","limit":"9223372036854775807","min_step":"1000","max_step":"100000000","reserve":"10m0s","max_jump":"1000000000000000","largest_step":"100000000","created":` + time0 + `,"nonce":"n"}`,
		},
		"tag with everything": {
			full.Encode("n"),
			`{"format":2,"start":"9007199254740993","limit":"9223372036854775807","min_step":"5","max_step":"7","reserve":"1m30s","max_jump":"1","max_skew":"2","strict_retract":true,"prescale":"6","prescale_until":` + time0 +
				`,"skips":[{"room":"a","to":"3"},{"room":"b","to":"4"}],"text_format":"prefix(<) | decimal","key_check":"0123456789abcdef","largest_step":"8","base_total":"9","created":` + time0 + `,"nonce":"n"}`,
		},
		"mark": {
			record.Mark{Next: big, Stamp: record.Stamp{Epoch: "e", Revision: 7}, Total: 5, Began: 2,
				Eras: []record.Era{{1, "d", 0, 1}, {2, "e", 3, big}}}.Encode(),
			`{"format":2,"next":"9007199254740993","stamp":{"epoch":"e","layout_revision":"7"},"total":"5","began":"2","eras":[{"version":"1","epoch":"d","first":"0","end":"1"},{"version":"2","epoch":"e","first":"3","end":"9007199254740993"}]}`,
		},
		"mark without a lease": {record.Mark{}.Raised(big).Encode(), `{"format":2,"next":"9007199254740993"}`},
		"registration": {
			record.Encode(&record.Registration{Incarnation: "x", Address: "a:1", Build: "v1", Version: 3,
				Started: at, Hold: "1m0s"}),
			`{"format":2,"incarnation":"x","address":"a:1","build":"v1","version":"3","started":` +
				time0 + `,"hold":"1m0s"}`,
		},
		"registration with everything": {
			record.Encode(&record.Registration{Incarnation: "x", Started: at, Hold: "0s", Epoch: "e",
				Lost: []string{"w"}, Unconfirmed: true, Leaving: true, Keeps: []string{"tinyid"}, AdminAddress: "h:1"}),
			`{"format":2,"incarnation":"x","address":"","build":"","version":"0","started":` + time0 +
				`,"hold":"0s","epoch":"e","lost":["w"],"unconfirmed":true,"leaving":true,"keeps":["tinyid"],"admin_address":"h:1"}`,
		},
		"machine": {
			record.Machine{Namespace: "ns", Instance: "h:1", Last: 1767323045678}.Encode(),
			`{"format":2,"namespace":"ns","instance":"h:1","stable":false,"last":"1767323045678","returned":false}`,
		},
		"machine with everything": {
			record.Machine{Namespace: "ns", Instance: "<h>", Stable: true, Last: 1, Returned: true}.Encode(),
			`{"format":2,"namespace":"ns","instance":"<h>","stable":true,"last":"1","returned":true}`,
		},
		"heartbeat": {record.Encode(&record.Heartbeat{Incarnation: "x", Counter: 7, Time: at, Nonce: "n"}),
			`{"format":2,"incarnation":"x","counter":"7","time":` + time0 + `,"nonce":"n"}`},
		"audit entry": {
			record.Keys("/march/c/").Audited(at, "ann", "update tag", "/march/c/tags/t", []byte(`{"a": 1}`),
				[]byte("no JSON")).Put.Value,
			`{"format":2,"time":` + time0 +
				`,"actor":"ann","action":"update tag","object":"tags/t","from":{"a":1},"to":"no JSON"}`,
		},
		"audit entry of nothing": {
			record.Keys("/march/c/").Audited(at, "ann", "halt", "/march/c/epoch", nil, nil).Put.Value,
			`{"format":2,"time":` + time0 + `,"actor":"ann","action":"halt","object":"epoch"}`,
		},
		"migration": {
			migration.Encode(),
			`{"format":2,"state":"running","from":` + oneText + `,"target":` + twoText +
				`,"moves":[],"reached":0,"hold":"0s",` + oldLog + lastWords + `}`,
		},
		"migration with everything": {
			moved.Encode(),
			`{"format":2,"state":"paused","abort":true,"from":` + oneText + `,"target":` + twoText + `,"moves":[` +
				`{"kind":"expand","why":"w","layout":` + oneText + `,"made":` + time0 + `,"hold":"0s"},` +
				`{"kind":"retract","why":"w","layout":` + twoText + `,"loses":["b","a"],"made":` + time0 +
				`,"hold":"1m0s","clients_until":` + time0 + `},` +
				`{"kind":"retract","why":"","layout":` + twoText + `,"loses":["b"],"hold":"1.5s"},` +
				`{"kind":"expand","why":"","layout":` + twoText +
				`}],"reached":2,"hold":"10m0s","without":[{"instance":"a/i","incarnation":"x","reached":1}],` +
				newLog + lastWords +
				`,"error":"etcd is <away>","error_since":` + time0 + `,"no_way_back":"no"}`,
		},
		"brief of a migration": {
			moved.Brief(),
			`{"format":2,"state":"paused","abort":true,"from":"1","target":` + twoText +
				`,"moves":4,"reached":2,"hold":"10m0s","without":[{"instance":"a/i","incarnation":"x","reached":1}]}`,
		},
		"active migration": {record.Encode(&record.ActiveMigration{Name: "m"}), `{"format":2,"name":"m"}`},
	} {
		if string(test.got) != test.want {
			t.Errorf("%s:\n got %s\nwant %s", name, test.got, test.want)
		}
		kind, _, _ := strings.Cut(name, " ")
		if again := record.Decoders[cmp.Or(map[string]string{"halt": "epoch", "heartbeat": "alive",
			"active": "holder"}[kind], kind)]; again != nil {
			if got, err := again([]byte(test.want)); err != nil || string(got) != test.want {
				t.Errorf("%s: %v\n read and written again %s\nwant %s", name, err, got, test.want)
			}
		} else if kind != "brief" {
			t.Errorf("%s is not read again", name)
		}
	}
}
