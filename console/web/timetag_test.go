package web_test

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/march-id/march/allocator/timeid"
	marchv1 "github.com/march-id/march/api/march/v1"
)

// The test creates a tag of time-ordered IDs, looks at its workers, changes its policies,
// and decodes an ID.
func (b *browser) timeTag(t *testing.T) {
	w := newWorld(t, 100, "a", "b")
	at, _ := w.console("")
	ids := w.server("a", "host-1")
	p := b.open(t, at)
	p.visit("/workers")
	p.says("No worker has been taken yet.")
	p.visit("/tags")
	p.click(button("New tag"))
	p.until("a counter has a start, and no bits",
		`document.querySelector("#new-start").offsetParent && !document.querySelector("#new-bits").offsetParent`)
	p.fill("#new-name", "event")
	p.choose("#new-kind", "time")
	p.until("a time tag has bits, and no start",
		`!document.querySelector("#new-start").offsetParent && !document.querySelector("#new-period").offsetParent && document.querySelector("#new-bits").offsetParent`)
	p.fill("#new-bits", "41/10/12")
	p.click(button("Create"))
	p.says("Time epoch: none given; allowed: 0 to ")
	p.until("the rest is as it was filled in",
		`document.querySelector("#new-kind").value === "time" && document.querySelector("#new-bits").value === "41/10/12"`)
	p.fill("#new-time_epoch", "2026-01-01T00:00:00Z")
	p.choose("#new-rollback", "offset")
	p.click(button("Create"))
	p.says("The tag was created.")
	p.says("41/10/12 time/worker/sequence")
	p.says("2026-01-01 00:00:00 UTC")
	p.says("No worker of this width has been taken yet")
	tag, err := w.Admin.Tag(t.Context(), "event")
	if err != nil || tag.Time == nil || tag.Time.Rollback != timeid.Offset || tag.Time.WorkerBits != 10 {
		t.Fatalf("%+v, %v", tag.Time, err)
	}

	answer, err := ids.Next(t.Context(), &marchv1.NextRequest{Tag: "event"})
	if err != nil {
		t.Fatal(err)
	}
	p.says("a/host-1")
	p.until("its worker is in use",
		`document.querySelector("#slice-10-a td[data-l='in use']").innerText === "1" && document.querySelectorAll("[id^=w-10-]").length === 1`)

	p.choose("#s-sequence", "carry")
	p.fill("#s-carry_to", "100")
	p.fill("#s-max_wait", "2m")
	p.click(button("Save settings…"))
	p.says("Max wait: 2m0s; allowed: up to 1m0s")
	p.until("it is said at the field", `document.querySelector("#s-max_wait[aria-invalid]")`)
	p.fill("#s-max_wait", "2s")
	p.click(button("Save settings…"))
	p.says("Sequence reset carry")
	p.says("A tick begins above the last sequence of the tick before, and at 1 once that was 100 or more.")
	p.click(button("Save these settings"))
	p.says("The settings were saved")
	if tag, err = w.Admin.Tag(t.Context(), "event"); err != nil || tag.Time.Sequence != timeid.Carry ||
		tag.Time.CarryTo != 100 || tag.Time.MaxWaitMS != 2000 {
		t.Errorf("%+v, %v", tag.Time, err)
	}

	p.visit("/workers?room=a&bits=10")
	p.until("the worker is listed", `document.querySelectorAll("[id^=w-10-]").length === 1`)
	p.visit("/workers?room=b")
	p.says("No such worker has been taken yet.")
	p.visit(fmt.Sprintf("/decode?tag=event&id=%d", answer.GetId()))
	p.says("By a worker of")
	epoch := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	issued := epoch.Add(time.Duration(answer.GetId()>>22) * time.Millisecond)
	p.until("its time is there", fmt.Sprintf(`document.querySelector(".facts").innerText.includes(%q)`,
		issued.Format(time.DateTime)))
}

// TestFormsOfTimeTags: the forms work without a script, and refuse what the tag's kind does
// not have, whatever a browser hides.
func TestFormsOfTimeTags(t *testing.T) {
	w := newWorld(t, 100, "a", "b")
	at, _ := w.console("")
	_, page := get(t, at+"/tags")
	for _, name := range []string{"kind", "start", "limit", "preset", "bits", "unit", "time_epoch", "order", "sequence",
		"carry_to", "random_below", "rollback", "max_wait", "format", "key_check", "period",
		"period_digits", "time_zone"} {
		if !strings.Contains(page, `name="`+name+`"`) {
			t.Errorf("the form has no field %s", name)
		}
	}
	for form, want := range map[string]string{
		"kind=time&preset=cosid&start=5":                 "Kind: time: a tag of this kind has no start",
		"kind=time&preset=cosid&strict_retract=on":       "Kind: time: a tag of this kind has no strict retract",
		"kind=counter&bits=41/10/12":                     "Kind: counter: a tag of this kind has no bits",
		"kind=dial":                                      "Kind: &#34;dial&#34;; allowed: counter, time",
		"kind=time":                                      "Bits: none, and no preset",
		"kind=time&preset=cosid&bits=41/10/12":           "Preset: cosid, together with bits",
		"kind=time&bits=60/10/12&time_epoch=0":           "bits",
		"kind=time&preset=cosid&time_epoch=tomorrow":     "epoch",
		"kind=time&preset=cosid&sequence=up":             "Sequence: &#34;up&#34;; allowed: ",
		"kind=time&bits=41/0/12&time_epoch=0":            "worker",
		"kind=time&preset=cosid&max_wait=2s&unit=1ms":    "Preset: cosid, together with",
		"kind=time&preset=cosid&carry_to=x&max_wait=10s": "Carry to: ",

		"kind=time&preset=cosid&format=friendly(leaf, UTC)": "Format: friendly(leaf, UTC) is of another layout",
		"format=prefix(ORD-) | base62":                      "Format: at column 16: base62 is no part",
		"format=decimal(3)%26limit=5000":                    "Format: at column 11",
		"format=opaque(k, 10^6) | decimal":                  "Key check: none given",
	} {
		answer, page := post(t, at+"/tags", "name=event&"+form)
		if answer.StatusCode < 400 || answer.StatusCode > 499 || !strings.Contains(page, want) {
			t.Errorf("%s: %s, want that it says %q", form, answer.Status, want)
		}
	}
	if answer, _ := post(t, at+"/tags", "name=event&kind=time&preset=cosid"); answer.StatusCode != http.StatusSeeOther {
		t.Errorf("created: %s", answer.Status)
	}
	if answer, _ := post(t, at+"/tags",
		"name=label&format=prefix(<b>) | radix62(9)"); answer.StatusCode != http.StatusSeeOther {
		t.Errorf("created: %s", answer.Status)
	}
	if _, page := get(t, at+"/tags/label"); !strings.Contains(page,
		"<dt>Format</dt><dd>prefix(&lt;b&gt;) | radix62(9)</dd>") {
		t.Errorf("the tag's page does not show its format: %s", page)
	}
	if _, page := get(t, at+"/decode?tag=label&id=%3Cb%3E000000042"); !strings.Contains(page,
		"The text stands for ID <b>250</b>.") || !strings.Contains(page, "No room has leased this ID") {
		t.Errorf("the text is not decoded: %s", page)
	}
	if _, page := get(t, at+"/decode?tag=label&id=PAY-000000042"); !strings.Contains(page, "another prefix") {
		t.Errorf("a text of another tag: %s", page)
	}
	if answer, _ := post(t, at+"/tags/label/settings", "limit=1000"); answer.StatusCode != http.StatusSeeOther {
		t.Errorf("saved: %s", answer.Status)
	}
	if answer, _ := post(t, at+"/tags/event/settings",
		"kind=time&rollback=fail"); answer.StatusCode != http.StatusSeeOther {
		t.Errorf("saved: %s", answer.Status)
	}
	tag, err := w.Admin.Tag(t.Context(), "event")
	if err != nil || tag.Time == nil || tag.Time.Rollback != timeid.Fail ||
		tag.Time.Layout().BitsString() != "41/10/12" {
		t.Errorf("%+v, %v", tag.Time, err)
	}
	if answer, page := get(t, at+"/workers?bits=x"); answer.StatusCode != http.StatusBadRequest ||
		!strings.Contains(page, "Bits: ") {
		t.Errorf("bits: %s", answer.Status)
	}
}

// post sends a form.
func post(t testing.TB, address, form string) (head, string) {
	t.Helper()
	values, err := url.ParseQuery(form)
	if err != nil {
		t.Fatal(err)
	}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, address, strings.NewReader(values.Encode()))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	return fetch(t, r)
}
