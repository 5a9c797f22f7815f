package record_test

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/allocator/period"
	"github.com/march-id/march/allocator/timeid"
)

const workerValue = `{"format":2,"room":"a","instance":"i-1","incarnation":"c","from":"1000","until":"2000","stamp":{"epoch":"e","layout_revision":"7"},"clock":"1000"}`

func TestWorkersThatDoNotFit(t *testing.T) {
	k := record.Keys("/march/default/")
	key := k.Worker(record.WorkerID{Bits: 10, Number: 1023})
	if key != "/march/default/workers/10/0000000000000001023" {
		t.Errorf("the key is %s", key)
	}
	id, w, err := k.DecodeWorker(store.KV{Key: key, Value: []byte(workerValue)})
	if err != nil || id.String() != "10/1023" || w.Until != 2000 || w.ID() != "a/i-1" ||
		string(w.Encode()) != workerValue {
		t.Errorf("%v %+v, %v", id, w, err)
	}
	caller := strings.Replace(strings.Replace(workerValue, `"format":2`, `"format":3`, 1), `"clock":"1000"`,
		`"clock":"1000","caller":true`, 1)
	if _, w, err := k.DecodeWorker(store.KV{Key: key, Value: []byte(caller)}); err != nil || !w.Caller ||
		string(w.Encode()) != caller {
		t.Errorf("%+v, %v", w, err)
	}
	for _, change := range [][2]string{
		{`"room":"a"`, `"room":"A"`}, {`"instance":"i-1"`, `"instance":""`}, {`"incarnation":"c"`, `"incarnation":""`},
		{`"from":"1000"`, `"from":"-1"`}, {`"from":"1000"`, `"from":"2001"`},
		{`"until":"2000"`, `"until":"999999999999999"`},
		{`"epoch":"e"`, `"epoch":""`}, {`revision":"7"`, `revision":"0"`}, {`"clock":"1000"`, `"clock":"-1"`},
		{`"clock":"1000"`, `"clock":"1000","caller":true`}, {`"epoch":"e"`, `"epoch":"e","version":"3"`},
	} {
		bad := strings.Replace(workerValue, change[0], change[1], 1)
		if _, w, err := k.DecodeWorker(store.KV{Key: key, Value: []byte(bad)}); err == nil || bad == workerValue {
			t.Errorf("%s was read as %+v", bad, w)
		}
	}
	for _, bad := range []string{"10/1", "10/0000000000000001024", "1/0000000000000000000", "63/0000000000000000000",
		"10/-000000000000000001", "-1/0000000000000000000"} {
		if p, err := k.Parse(k.All(record.Workers) + bad); err == nil {
			t.Errorf("key %s was parsed as %+v", bad, p)
		}
	}
}

// Of two keys the later end counts: a recover raises a key by a memory.
func TestRaisedWorkers(t *testing.T) {
	a, b := record.Worker{Incarnation: "a", Until: 5}, record.Worker{Incarnation: "b", Until: 6}
	for _, got := range []record.Worker{a.Raised(b), b.Raised(a)} {
		if got.Incarnation != "b" {
			t.Errorf("got %+v", got)
		}
	}
}

const timeTag = `{"format":3,"start":"0","limit":"0","min_step":"0","max_step":"0","reserve":"0s","max_jump":"0",` +
	`"time":{"time_bits":41,"worker_bits":10,"sequence_bits":12,"unit_ms":"1","epoch_ms":"1577203200000","order":"worker-last","sequence":"random","random_below":"50","rollback":"offset"},` +
	`"largest_step":"0","created":"2026-01-02T03:04:05Z","nonce":"n"}`

func TestTimeTags(t *testing.T) {
	tag, again, err := record.AgainTag([]byte(timeTag))
	if err != nil || string(again) != timeTag {
		t.Fatalf("%v\n got %s\nwant %s", err, again, timeTag)
	}
	if l := tag.Time.Layout(); l.BitsString() != "41/10/12" || l.Stride() != 1024 {
		t.Errorf("%+v", l)
	}
	for _, change := range [][2]string{
		{`"format":3`, `"format":2`},
		{`,"rollback":"offset"`, ``}, {`"rollback":"offset"`, `"rollback":"offset","max_ahead":"1"`},
		{`"rollback":"offset"`, `"rollback":"go"`},
		{`"start":"0"`, `"start":"2"`}, {`"limit":"0"`, `"limit":"9"`}, {`"min_step":"0"`, `"min_step":"1"`},
		{`"max_jump":"0"`, `"max_jump":"1"`}, {`"reserve":"0s"`, `"reserve":"1m0s"`},
		{`"largest_step":"0"`, `"largest_step":"1"`},
		{`"max_jump":"0"`, `"max_jump":"0","max_skew":"1"`}, {`"max_jump":"0"`, `"max_jump":"0","strict_retract":true`},
		{`"largest_step"`, `"prescale":"5","prescale_until":"2026-01-02T03:04:05Z","largest_step"`},
		{`"largest_step"`, `"skips":[{"room":"a","to":"5"}],"largest_step"`},
		{`"time_bits":41`, `"time_bits":42`}, {`"unit_ms":"1"`, `"unit_ms":"2"`},
		{`"unit_ms":"1"`, `"unit_ms":"9223372036854775807"`},
		{`"order":"worker-last"`, `"order":"last"`}, {`"random_below":"50"`, `"random_below":"5000"`},
	} {
		bad := strings.Replace(timeTag, change[0], change[1], 1)
		if got, _, err := record.AgainTag([]byte(bad)); err == nil || bad == timeTag {
			t.Errorf("%s was read as %+v", bad, got.Time)
		}
	}
}

// An older program, which does not know not_before, must not enter such an epoch.
func TestNotBeforeRaisesTheFormat(t *testing.T) {
	const value = `{"format":3,"epoch":"e","margin_total":"2","not_before":"9007199254740993"}`
	if got, err := record.Decoders["epoch"]([]byte(value)); err != nil || string(got) != value {
		t.Errorf("%v, got %s", err, got)
	}
	for _, bad := range []string{strings.Replace(value, "3", "2", 1), `{"format":3,"epoch":"e"}`} {
		if got, err := record.Decoders["epoch"]([]byte(bad)); err == nil {
			t.Errorf("%s was read as %s", bad, got)
		}
	}
}

func FuzzDecodeMachine(f *testing.F) { fuzz(f, []string{"machine"}, decoder("machine")) }

func FuzzDecodeWorker(f *testing.F) { fuzz(f, []string{"worker"}, decoder("worker")) }

// An operator cannot give a tag of kind time a setting of counters.
func TestTimeTagsRefuseACountersSettings(t *testing.T) {
	of := func(change func(*record.TagSettings)) error {
		s := record.DefaultTag()
		preset, err := timeid.PresetNamed("cosid")
		if err != nil {
			t.Fatal(err)
		}
		tag := record.NewTimeTag(preset.Layout)
		s.Time = &tag
		change(&s)
		return s.Validate()
	}
	if err := of(func(*record.TagSettings) {}); err != nil {
		t.Error(err)
	}
	// This test names every field of TagSettings, so that a new one is not forgotten.
	for f := range reflect.TypeFor[record.TagSettings]().Fields() {
		if f.Name == "Time" || f.Name == "Format" || f.Name == "KeyCheck" { // fields of tags of both kinds
			continue
		}
		err := of(func(s *record.TagSettings) {
			v := reflect.ValueOf(s).Elem().FieldByIndex(f.Index)
			switch v.Kind() {
			case reflect.Int64:
				v.SetInt(7)
			case reflect.Bool:
				v.SetBool(true)
			case reflect.String:
				v.SetString("7s")
			case reflect.Map:
				v.Set(reflect.ValueOf(record.Skips{"a": 1}))
			case reflect.Struct:
				if f.Name == "Period" {
					v.Set(reflect.ValueOf(period.Period{Unit: period.Day, Digits: 9, Zone: "UTC"}))
					return
				}
				v.Set(reflect.ValueOf(time.Unix(7, 0)))
			default:
				t.Fatalf("no value for the field %s", f.Name)
			}
		})
		if allocator.KindOf(err) != allocator.Invalid {
			t.Errorf("%s is not refused: %v", f.Name, err)
		}
	}
	for field, change := range map[string]func(*record.TagSettings){
		"start": func(s *record.TagSettings) { s.Start = 7 }, "limit": func(s *record.TagSettings) { s.Limit = 7 },
		"max_jump": func(s *record.TagSettings) {
			s.MaxJump = 7
		}, "max_skew": func(s *record.TagSettings) { s.MaxSkew = 7 },
		"min_step": func(s *record.TagSettings) {
			s.MinStep++
		}, "max_step": func(s *record.TagSettings) { s.MaxStep++ },
		"reserve": func(s *record.TagSettings) {
			s.Reserve = record.DurationOf(7)
		}, "prescale": func(s *record.TagSettings) { s.Prescale = 7 },
		"skip":           func(s *record.TagSettings) { s.Skips = map[allocator.Room]int64{"a": 1} },
		"strict_retract": func(s *record.TagSettings) { s.StrictRetract = true },
		"worker bits":    func(s *record.TagSettings) { s.Time.WorkerBits = 63 },
		"max_wait":       func(s *record.TagSettings) { s.Time.MaxWaitMS = -1 },
	} {
		if err := of(change); allocator.KindOf(err) != allocator.Invalid || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: got %v", field, err)
		}
	}
}

// Settings that decide the meaning of an ID never change; those of how IDs are made may.
func TestWhatOfATagMayChange(t *testing.T) {
	preset, err := timeid.PresetNamed("cosid")
	if err != nil {
		t.Fatal(err)
	}
	made := record.NewTimeTag(preset.Layout)
	was := record.DefaultTag()
	was.Time = &made
	for field, change := range map[string]func(*record.TagSettings){
		"":      func(s *record.TagSettings) { s.Time.Rollback, s.Time.Sequence = timeid.Offset, timeid.Carry },
		"kind":  func(s *record.TagSettings) { s.Time = nil },
		"start": func(s *record.TagSettings) { s.Start = 5 },
		"bits":  func(s *record.TagSettings) { s.Time.WorkerBits-- },
		"epoch": func(s *record.TagSettings) { s.Time.EpochMS += 1000 },
		"order": func(s *record.TagSettings) { s.Time.Order = timeid.WorkerLast },

		"format":    func(s *record.TagSettings) { s.Format = "decimal" },
		"key_check": func(s *record.TagSettings) { s.KeyCheck = "0123456789abcdef" },
	} {
		to, changed := was, made
		to.Time = &changed
		change(&to)
		if err := was.Changeable(to); (err != nil) != (field != "") ||
			err != nil && !strings.Contains(err.Error(), field) {
			t.Errorf("%s: got %v", field, err)
		}
	}
}

// A tag is refused if a room would have no worker of it.
func TestSlicesOfATimeTag(t *testing.T) {
	l := allocator.Layout{Boundary: 1000, Ranges: map[allocator.Room]allocator.Range{"a": {Lower: 0, Upper: 500},
		"b": {Lower: 501, Upper: 502}}}
	if err := (record.TimeTag{WorkerBits: 3}).CheckSlices(l); allocator.KindOf(err) != allocator.Refused ||
		!strings.Contains(err.Error(), "room b") {
		t.Errorf("got %v", err)
	}
	if err := (record.TimeTag{WorkerBits: 20}).CheckSlices(l); err != nil {
		t.Error(err)
	}
}
