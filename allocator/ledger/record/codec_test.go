package record_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/march-id/march/allocator/ledger/record"
)

// samples has one value of each kind, with every number past 2^53 (where the
// format allows it) and text that JSON must escape.
var samples = map[string]string{
	"identity":     `{"format":2,"uuid":"d2719f0c-a6c8-4a3a-bb8c-5f4b0d1f2a3e","etcd_cluster_id":"18446744073709551615"}`,
	"epoch":        `{"format":2,"epoch":"00112233445566778899aabbccddeeff","margin_total":"9007199254740993"}`,
	"halted":       `{"format":2,"halted":{"by":"i1","why":"a \"restore\"","time":"2026-01-02T03:04:05.678Z","nonce":"n"}}`,
	"layout":       `{"format":2,"version":"9007199254740993","boundary":"9223372036854775807","rooms":{"a":{"lower":"9007199254740993","upper":"9223372036854775807"}},"ever":["a","b"],"time":"2026-01-02T03:04:05Z","actor":"ann <ann@example.org>","nonce":"n","narrowest_range":"9007199254740993","largest_boundary":"9223372036854775807"}`,
	"tag":          `{"format":2,"start":"9007199254740993","limit":"9223372036854775807","min_step":"1","max_step":"1099511627775","reserve":"10m0s","max_jump":"9223372036854775807","max_skew":"9007199254740993","strict_retract":true,"skips":[{"room":"a","to":"9007199254740993"}],"text_format":"decimal(19)","key_check":"0123456789abcdef","largest_step":"1099511627776","base_total":"9007199254740993","created":"2026-01-02T03:04:05Z","nonce":"n"}`,
	"mark":         `{"format":2,"next":"9223372036854775807","stamp":{"epoch":"e","layout_revision":"9007199254740993"},"total":"9007199254740999","began":"9007199254740995","eras":[{"version":"9007199254740995","epoch":"e","first":"9007199254740997","end":"9223372036854775807"}]}`,
	"raised":       `{"format":2,"next":"9007199254740993"}`,
	"registration": `{"format":2,"incarnation":"i","address":"[::1]:7010","build":"v1","version":"9007199254740993","started":"2026-01-02T03:04:05Z","hold":"10m0s"}`,
	"settings":     `{"format":2,"journal":"required","nonce":"n"}`,
	"answered":     `{"format":2,"epoch":"c0ffee","incarnations":["aa","bb"]}`,
	"beat":         `{"format":2,"raft_index":"18446744073709551615","raft_term":"7","revision":"9007199254740993","time":"2026-01-02T03:04:05Z"}`,
	"audit":        `{"format":2,"time":"2026-01-02T03:04:05Z","actor":"ann","action":"update tag","object":"tags/t","from":{"start":"9007199254740993"},"to":{"n":9007199254740993}}`,
	"chained":      `{"format":2,"time":"2026-01-02T03:04:05Z","actor":"ann","action":"halt","object":"epoch","writer":"W","sequence":"9007199254740993","after":{"01ARZ3NDEKTSV4RRFFQ69G5FAV":"00ff"}}`,
	"oldest":       `{"format":2,"removed":"01ARZ3NDEKTSV4RRFFQ69G5FAV","id":"01BX5ZZKBKACTAV9WEVGEMMVRZ","hash":"00ff"}`,
	"alive":        `{"format":2,"incarnation":"i","counter":"7","time":"2026-01-02T03:04:05Z","nonce":"n"}`,
	"console":      `{"format":2,"address":"[::1]:7001","time":"2026-01-02T03:04:05Z"}`,
	"worker":       `{"format":2,"room":"a","instance":"i","incarnation":"c","from":"253402300799991","until":"253402300799993","stamp":{"epoch":"e","layout_revision":"9007199254740997"},"clock":"253402300799992"}`,
	"machine":      `{"format":2,"namespace":"ns","instance":"h:1","stable":true,"last":"253402300799991","returned":true}`,
	"migration":    `{"format":2,"state":"running","from":{"version":"1","boundary":"10","rooms":{"a":{"lower":"0","upper":"5"}}},"target":{"version":"2","boundary":"10","rooms":{"a":{"lower":"0","upper":"4"}}},"moves":[{"kind":"retract","why":"w","layout":{"version":"2","boundary":"10","rooms":{"a":{"lower":"0","upper":"4"}}},"loses":["a"],"made":"2026-01-02T03:04:05Z","hold":"10m0s"}],"reached":1,"hold":"10m0s","log":[{"time":"2026-01-02T03:04:05Z","text":"started"}],"actor":"ann","created":"2026-01-02T03:04:05Z","updated":"2026-01-02T03:04:05Z","nonce":"n"}`,
	"holder":       `{"format":2,"name":"n"}`,
	"tenure":       `{"format":2,"instance":"i","incarnation":"c","address":"[::1]:7010","epoch":"e","nonce":"n","taken":"2026-01-02T03:04:05Z","hold":"3s","released":true,"rest":{"version":"9007199254740993","epoch":"e","first":"9007199254740995","end":"9007199254740997"}}`,
}

// decoder returns the decoder of a sample's kind.
func decoder(kind string) func([]byte) ([]byte, error) {
	switch kind {
	case "halted":
		kind = "epoch"
	case "raised":
		kind = "mark"
	case "chained":
		kind = "audit"
	}
	return record.Decoders[kind]
}

func TestValuesSurviveExactly(t *testing.T) {
	for kind, value := range samples {
		got, err := decoder(kind)([]byte(value))
		if err != nil || string(got) != value {
			t.Errorf("%s: %v\n got %s\nwant %s", kind, err, got, value)
		}
	}
	for kind := range record.Decoders {
		if _, ok := samples[kind]; !ok {
			t.Errorf("there is no sample of kind %s", kind)
		}
	}
}

// A value is refused unless it is exactly what this program writes, in every kind: no missing
// field is read as zero.
func TestValuesAreReadStrictly(t *testing.T) {
	for kind, value := range samples {
		decode := decoder(kind)
		refused := func(what, bad string) {
			t.Helper()
			if got, err := decode([]byte(bad)); err == nil {
				t.Errorf("%s: %s was read as %s: %s", kind, what, got, bad)
			} else if !strings.Contains(err.Error(), "key test") {
				t.Errorf("%s: %s: %v does not name the key", kind, what, err)
			}
		}
		var fields map[string]json.RawMessage
		if err := json.Unmarshal([]byte(value), &fields); err != nil {
			t.Fatal(err)
		}
		edit := func(name string, to json.RawMessage) string {
			changed := map[string]json.RawMessage{}
			for field, v := range fields {
				changed[field] = v
			}
			if changed[name] = to; to == nil {
				delete(changed, name)
			}
			b, _ := json.Marshal(changed)
			return string(b)
		}
		optional := map[string]bool{"epoch": kind == "epoch", "halted": true, "max_skew": true, "strict_retract": true,
			"skips": true, "text_format": true, "key_check": true, "from": true, "to": true, "after": true,
			"released": true, "rest": true}
		for _, name := range []string{"stamp", "total", "began", "eras", "margin_total", "base_total"} {
			optional[name] = true
		}
		for name, v := range fields {
			if !optional[name] {
				refused(name+" is missing", edit(name, nil))
			}
			if name != "from" && name != "to" {
				refused(name+" is null", edit(name, json.RawMessage("null")))
				refused(name+" is null in its place", strings.Replace(value, fmt.Sprintf("%q:%s", name, v),
					fmt.Sprintf("%q:null", name), 1))
			}
			refused(name+" is spelt otherwise", strings.Replace(value, `"`+name+`"`,
				`"`+strings.ToUpper(name[:1])+name[1:]+`"`, 1))
			if number := strings.Trim(string(v), `"`); string(v) != number && strings.Trim(number, "0123456789") == "" {
				for _, bad := range []string{number, `""`, `" ` + number + `"`, `"0` + number + `"`,
					`"` + number + `.0"`, `"1e3"`, `"+1"`, `"0x10"`, `"99999999999999999999"`,
					`"null"`, `"-0"`, `true`, `[]`} {
					refused(name+" is "+bad, edit(name, json.RawMessage(bad)))
				}
			}
		}
		refused("another format", edit("format", json.RawMessage("3")))
		refused("the first release's format", edit("format", json.RawMessage("1")))
		refused("format 0", edit("format", json.RawMessage("0")))
		refused("a format as text", edit("format", json.RawMessage(`"2"`)))
		for name, v := range fields {
			refused(name+" is there twice", fmt.Sprintf(`{%q:%s,%s`, name, v, value[1:]))
		}
		refused("an unknown field is there twice", `{"unknown":1,"unknown":1,`+value[1:])
		refused("something behind", value+"{}")
		refused("a half", value[:len(value)/2])
		for _, bad := range []string{"", "null", "0", `"x"`, "[]", "{}", "\xff", `{"format":2,"format":2}`} {
			refused("other JSON", bad)
		}
		// Operators may change spaces and the order of fields.
		if _, err := decode([]byte(" " + edit("format", json.RawMessage("2")) + "\n")); err != nil {
			t.Errorf("%s in another order: %v", kind, err)
		}
	}
}

// exact are the kinds that refuse unknown fields.
var exact = map[string]bool{"epoch": true, "halted": true, "layout": true, "mark": true, "raised": true,
	"worker": true, "machine": true, "tenure": true}

// Fields that a newer version of the program adds to a value pass through this version
// unchanged. They are refused if they may change which IDs may be issued. So two versions can
// run beside each other.
func TestUnknownFieldsAreKept(t *testing.T) {
	for kind, value := range samples {
		for _, field := range []string{
			`"new":"x"`, `"new":null`, `"new":{"b":[1, {"a" : "<&>\u003c"}],"a":1e400,"a":-0}`,
			`"n\u0065w" :  12345678901234567890.50`, `"new":"\ud800"`,
		} {
			for at, changed := range []string{value[:len(value)-1] + "," + field + "}", "{" + field + "," + value[1:],
				strings.Replace(value, ",", ", "+field+",", 1)} {
				got, err := decoder(kind)([]byte(changed))
				switch want := value[:len(value)-1] + "," + field + "}"; {
				case exact[kind]:
					if err == nil || !strings.Contains(err.Error(), field) {
						t.Errorf("%s: %s was read: %v", kind, changed, err)
					}
				case err != nil || string(got) != want:
					t.Errorf("%s, place %d: %v\n got %s\nwant %s", kind, at, err, got, want)
				}
			}
		}
	}
}

// An unknown field in a part of a value is kept if the part is the migration's own, and refused
// if it may change which IDs a room may issue.
func TestUnknownFieldsOfParts(t *testing.T) {
	again := func(old, changed string) (string, error) {
		value := strings.Replace(samples["migration"], old, changed, 1)
		if value == samples["migration"] {
			t.Fatalf("there is no %s", old)
		}
		got, err := decoder("migration")([]byte(value))
		if err == nil && string(got) != value {
			t.Errorf("%s was written as %s", value, got)
		}
		return value, err
	}
	for old, changed := range map[string]string{
		`"hold":"10m0s"}],"reached"`: `"hold":"10m0s","failed":{"why":"<etcd>"}}],"reached"`,
		`"text":"started"`:           `"text":"started","by":"ann"`,
	} {
		if value, err := again(old, changed); err != nil {
			t.Errorf("%s: %v", value, err)
		}
	}
	for old, changed := range map[string]string{
		`"upper":"5"`: `"upper":"5","but":"3"`, `"boundary":"10"`: `"boundary":"10","step":"2"`,
		`"kind":"retract"`: `"kind":"retract","Kind":"expand"`, `"why":"w"`: `"why":null`,
		`"text":"started"`: `"text":null`,
	} {
		if value, err := again(old, changed); err == nil {
			t.Errorf("%s was read", value)
		}
	}
	skip := strings.Replace(samples["tag"], `"room":"a"`, `"room":"a","if":"x"`, 1)
	if _, err := decoder("tag")([]byte(skip)); err == nil {
		t.Errorf("%s was read", skip)
	}
}

// A value is written in the lowest format that holds it, and read in no other.
func TestFormats(t *testing.T) {
	for value, want := range map[string]string{
		`{"format":2,"name":"n"}`:              "",
		`{"format":3,"name":"n","count":"5"}`:  "",
		`{"format":2,"name":"n","count":"5"}`:  "format 2; this program knows format 3",
		`{"format":3,"name":"n"}`:              "format 3; this program knows format 2",
		`{"format":4,"build":"v9.1","name":5}`: "format 4, written by version v9.1; this program knows format 2",
	} {
		got, err := record.DecodeNewer([]byte(value))
		if want == "" && (err != nil || string(got) != value) ||
			want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s was read as %s, %v", value, got, err)
		}
	}
}

func TestMarksThatDoNotFit(t *testing.T) {
	const good = `{"format":2,"next":"10","stamp":{"epoch":"e","layout_revision":"7"},"total":"5","began":"2",` +
		`"eras":[{"version":"1","epoch":"d","first":"0","end":"1"},{"version":"2","epoch":"e","first":"3","end":"9"}]}`
	if m, _, err := record.AgainMark([]byte(good)); err != nil || m.Next != 10 || m.Last().First != 3 ||
		m.Total != 5 || m.Began != 2 {
		t.Errorf("%+v, %v", m, err)
	}
	for _, change := range [][2]string{
		{`"next":"10"`, `"next":"8"`}, {`"next":"10"`, `"next":"-1"`}, {`revision":"7"`, `revision":"0"`},
		{`"stamp":{"epoch":"e","layout_revision":"7"},`, ``}, {`"stamp":{"epoch":"e"`, `"stamp":{"epoch":""`},
		{`"stamp":{"epoch":"e"`, `"stamp":{"epoch":"d"`}, {`"total":"5"`, `"total":"-5"`},
		{`"began":"2"`, `"began":"-2"`},
		{`"began":"2"`, `"began":"4"`}, {`"version":"2"`, `"version":"0"`}, {`"version":"1"`, `"version":"3"`},
		{`"first":"3"`, `"first":"9"`}, {`"first":"3"`, `"first":"0"`}, {`"first":"0"`, `"first":"-1"`},
		{`"epoch":"d"`, `"epoch":""`}, {`"eras":[`,
			`"eras":[` + strings.Repeat(`{"version":"1","epoch":"d","first":"0","end":"0"},`, 7)},
	} {
		bad := strings.Replace(good, change[0], change[1], 1)
		if m, _, err := record.AgainMark([]byte(bad)); err == nil || bad == good {
			t.Errorf("%s was read as %+v", bad, m)
		}
	}
	for _, bad := range []string{
		`{"format":2,"next":"-5"}`, `{"format":2,"next":"5","total":"1"}`, `{"format":2,"next":"5","began":"1"}`,
		`{"format":2,"next":"5","stamp":{"epoch":"e","layout_revision":"7"}}`,
	} {
		if m, _, err := record.AgainMark([]byte(bad)); err == nil {
			t.Errorf("%s was read as %+v", bad, m)
		}
	}
}

// fuzz feeds any bytes to a decoder. It must not panic, and a value that it accepts must read
// the same after it is written again.
func fuzz(f *testing.F, kinds []string, decode func([]byte) ([]byte, error)) {
	for _, kind := range kinds {
		f.Add([]byte(samples[kind]))
	}
	f.Add([]byte(`{"format":2}`))
	f.Add([]byte(`{"new": {"a" :1}, "format":2,"new2":null}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		once, err := decode(b)
		if err != nil {
			return
		}
		twice, err := decode(once)
		if err != nil || string(twice) != string(once) {
			t.Errorf("%q was written as %q, which reads %v as %q", b, once, err, twice)
		}
	})
}

func FuzzDecodeIdentity(f *testing.F)  { fuzz(f, []string{"identity"}, decoder("identity")) }
func FuzzDecodeEpoch(f *testing.F)     { fuzz(f, []string{"epoch", "halted"}, decoder("epoch")) }
func FuzzDecodeAlive(f *testing.F)     { fuzz(f, []string{"alive"}, decoder("alive")) }
func FuzzDecodeBeat(f *testing.F)      { fuzz(f, []string{"beat"}, decoder("beat")) }
func FuzzDecodeSettings(f *testing.F)  { fuzz(f, []string{"settings"}, decoder("settings")) }
func FuzzDecodeAudit(f *testing.F)     { fuzz(f, []string{"audit"}, decoder("audit")) }
func FuzzDecodeMigration(f *testing.F) { fuzz(f, []string{"migration"}, decoder("migration")) }
func FuzzDecodeHolder(f *testing.F)    { fuzz(f, []string{"holder"}, decoder("holder")) }
func FuzzDecodeRegistration(f *testing.F) {
	fuzz(f, []string{"registration"}, decoder("registration"))
}

func FuzzDecodeLayout(f *testing.F) {
	fuzz(f, []string{"layout"}, func(b []byte) ([]byte, error) {
		_, again, err := record.AgainLayout(b)
		return again, err
	})
}

func FuzzDecodeTag(f *testing.F) {
	fuzz(f, []string{"tag"}, func(b []byte) ([]byte, error) {
		_, again, err := record.AgainTag(b)
		return again, err
	})
}

func FuzzDecodeMark(f *testing.F) {
	fuzz(f, []string{"mark", "raised"}, func(b []byte) ([]byte, error) {
		_, again, err := record.AgainMark(b)
		return again, err
	})
}
