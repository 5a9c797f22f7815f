package ledger_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/march-id/march/allocator/ledger"
)

// samples has one value of each kind, with every number past 2^53 (where the
// format allows it) and text that JSON must escape.
var samples = map[string]string{
	"identity":     `{"format":1,"uuid":"d2719f0c-a6c8-4a3a-bb8c-5f4b0d1f2a3e","etcd_cluster_id":"18446744073709551615"}`,
	"epoch":        `{"format":1,"epoch":"00112233445566778899aabbccddeeff"}`,
	"halted":       `{"format":1,"halted":{"by":"i1","why":"a \"restore\"","time":"2026-01-02T03:04:05.678Z","nonce":"n"}}`,
	"layout":       `{"format":1,"version":"9007199254740993","boundary":"9223372036854775807","rooms":{"a":{"lower":"9007199254740993","upper":"9223372036854775807"}},"ever":["a","b"],"time":"2026-01-02T03:04:05Z","actor":"ann <ann@example.org>","nonce":"n"}`,
	"tag":          `{"format":1,"start":"9007199254740993","limit":"9223372036854775807","min_step":"1","max_step":"1099511627775","reserve":"10m0s","max_jump":"9223372036854775807","max_skew":"9007199254740993","strict_retract":true,"skips":[{"room":"a","to":"9007199254740993"}],"created":"2026-01-02T03:04:05Z","nonce":"n"}`,
	"mark":         `{"format":1,"next":"9223372036854775807","era":{"epoch":"e","layout_revision":"9007199254740993","version":"9007199254740995","first":"9007199254740997","end":"9223372036854775807"}}`,
	"raised":       `{"format":1,"next":"9007199254740993"}`,
	"era":          `{"format":1,"epoch":"e","layout_revision":"9007199254740993","version":"9007199254740995","first":"9007199254740997","end":"9223372036854775807"}`,
	"registration": `{"format":1,"incarnation":"i","address":"[::1]:7010","build":"v1","version":"9007199254740993","started":"2026-01-02T03:04:05Z","hold":"10m0s"}`,
	"alive":        `{"format":1,"incarnation":"i","time":"2026-01-02T03:04:05Z","nonce":"n"}`,
	"settings":     `{"format":1,"journal":"required","nonce":"n"}`,
	"beat":         `{"format":1,"raft_index":"18446744073709551615","raft_term":"7","revision":"9007199254740993","time":"2026-01-02T03:04:05Z"}`,
	"silent":       `{"format":1,"incarnation":"i","since":"2026-01-02T03:04:05Z"}`,
	"audit":        `{"format":1,"time":"2026-01-02T03:04:05Z","actor":"ann","action":"update tag","object":"tags/t","from":{"start":"9007199254740993"},"to":{"n":9007199254740993}}`,
}

// decoder returns the decoder of a sample's kind.
func decoder(kind string) func([]byte) ([]byte, error) {
	switch kind {
	case "halted":
		kind = "epoch"
	case "raised":
		kind = "mark"
	}
	return ledger.Decoders[kind]
}

func TestValuesSurviveExactly(t *testing.T) {
	for kind, value := range samples {
		want := strings.NewReplacer("<", `\u003c`, ">", `\u003e`).Replace(value)
		got, err := decoder(kind)([]byte(value))
		if err != nil || string(got) != want {
			t.Errorf("%s: %v\n got %s\nwant %s", kind, err, got, want)
		}
	}
	for kind := range ledger.Decoders {
		if _, ok := samples[kind]; !ok {
			t.Errorf("there is no sample of kind %s", kind)
		}
	}
}

// Whatever is not exactly what this program writes is refused, in every kind
// of value: nothing that is missing is read as zero.
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
		optional := map[string]bool{"epoch": kind == "epoch", "halted": true, "max_skew": true, "strict_retract": true, "skips": true, "from": true, "to": true}
		optional["era"] = kind == "mark"
		for name, v := range fields {
			if !optional[name] {
				refused(name+" is missing", edit(name, nil))
			}
			if name != "from" && name != "to" {
				refused(name+" is null", edit(name, json.RawMessage("null")))
			}
			refused(name+" is spelt otherwise", strings.Replace(value, `"`+name+`"`, `"`+strings.ToUpper(name[:1])+name[1:]+`"`, 1))
			if number := strings.Trim(string(v), `"`); string(v) != number && strings.Trim(number, "0123456789") == "" {
				for _, bad := range []string{number, `""`, `" ` + number + `"`, `"0` + number + `"`, `"` + number + `.0"`, `"1e3"`, `"+1"`, `"0x10"`, `"99999999999999999999"`, `"null"`, `"-0"`, `true`, `[]`} {
					refused(name+" is "+bad, edit(name, json.RawMessage(bad)))
				}
			}
		}
		refused("another format", edit("format", json.RawMessage("2")))
		refused("format 0", edit("format", json.RawMessage("0")))
		refused("a format as text", edit("format", json.RawMessage(`"1"`)))
		refused("an unknown field", edit("unknown", json.RawMessage(`"x"`)))
		refused("something behind", value+"{}")
		refused("a half", value[:len(value)/2])
		for _, bad := range []string{"", "null", "0", `"x"`, "[]", "{}", "\xff", `{"format":1,"format":2}`} {
			refused("other JSON", bad)
		}
		// Spaces and the order of fields are an operator's own.
		if _, err := decode([]byte(" " + edit("format", json.RawMessage("1")) + "\n")); err != nil {
			t.Errorf("%s in another order: %v", kind, err)
		}
	}
}

func TestMarksThatDoNotFit(t *testing.T) {
	mark := func(next, revision, version, first, end int64) string {
		return fmt.Sprintf(`{"format":1,"next":"%d","era":{"epoch":"e","layout_revision":"%d","version":"%d","first":"%d","end":"%d"}}`, next, revision, version, first, end)
	}
	if m, _, err := ledger.DecodeMark([]byte(mark(10, 1, 2, 3, 9))); err != nil || m.Next != 10 || m.Era.First != 3 {
		t.Errorf("%+v, %v", m, err)
	}
	for _, bad := range []string{
		mark(-1, 1, 1, 3, 9), mark(8, 1, 1, 3, 9), mark(10, 0, 1, 3, 9), mark(10, 1, 0, 3, 9), mark(10, 1, -1, 3, 9),
		mark(10, 1, 1, -3, 9), mark(10, 1, 1, 9, 9), mark(10, 1, 1, 10, 9), `{"format":1,"next":"-5"}`,
		strings.Replace(mark(10, 1, 2, 3, 9), `"epoch":"e"`, `"epoch":""`, 1),
	} {
		if m, _, err := ledger.DecodeMark([]byte(bad)); err == nil {
			t.Errorf("%s was read as %+v", bad, m)
		}
	}
}

// fuzz feeds any bytes to a decoder: it never panics, and what it accepts it
// writes so that it reads the same again.
func fuzz(f *testing.F, kinds []string, decode func([]byte) ([]byte, error)) {
	for _, kind := range kinds {
		f.Add([]byte(samples[kind]))
	}
	f.Add([]byte(`{"format":1}`))
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

func FuzzDecodeIdentity(f *testing.F) { fuzz(f, []string{"identity"}, decoder("identity")) }
func FuzzDecodeEpoch(f *testing.F)    { fuzz(f, []string{"epoch", "halted"}, decoder("epoch")) }
func FuzzDecodeAlive(f *testing.F)    { fuzz(f, []string{"alive"}, decoder("alive")) }
func FuzzDecodeSilent(f *testing.F)   { fuzz(f, []string{"silent"}, decoder("silent")) }
func FuzzDecodeBeat(f *testing.F)     { fuzz(f, []string{"beat"}, decoder("beat")) }
func FuzzDecodeSettings(f *testing.F) { fuzz(f, []string{"settings"}, decoder("settings")) }
func FuzzDecodeAudit(f *testing.F)    { fuzz(f, []string{"audit"}, decoder("audit")) }
func FuzzDecodeRegistration(f *testing.F) {
	fuzz(f, []string{"registration"}, decoder("registration"))
}

func FuzzDecodeLayout(f *testing.F) {
	fuzz(f, []string{"layout"}, func(b []byte) ([]byte, error) {
		_, again, err := ledger.DecodeLayout(b)
		return again, err
	})
}

func FuzzDecodeTag(f *testing.F) {
	fuzz(f, []string{"tag"}, func(b []byte) ([]byte, error) {
		_, again, err := ledger.DecodeTag(b)
		return again, err
	})
}

func FuzzDecodeMark(f *testing.F) {
	fuzz(f, []string{"mark", "raised"}, func(b []byte) ([]byte, error) {
		_, again, err := ledger.DecodeMark(b)
		return again, err
	})
}

func FuzzDecodeEra(f *testing.F) {
	fuzz(f, []string{"era"}, func(b []byte) ([]byte, error) {
		_, again, err := ledger.DecodeEra(b)
		return again, err
	})
}
