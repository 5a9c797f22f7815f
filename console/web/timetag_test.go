package web_test

import (
	_ "embed"
	"fmt"
	"html"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/period"
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
	p.says("Bits 41/10/12 Unit 1ms Time epoch 2026-01-01T00:00:00.000Z")
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
		`document.querySelector("#slices-10-a td[data-l='In use']").innerText === "1" && document.querySelectorAll("[id^=workers-10-]").length === 1`)

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
	p.until("the worker is listed", `document.querySelectorAll("[id^=workers-10-]").length === 1`)
	p.visit("/workers?room=b")
	p.says("No such worker has been taken yet.")
	p.visit(fmt.Sprintf("/decode?tag=event&id=%d", answer.GetId()))
	p.says("By a worker of")
	epoch := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	issued := epoch.Add(time.Duration(answer.GetId()>>22) * time.Millisecond)
	p.until("its time is there", fmt.Sprintf(`document.querySelector(".facts").innerText.includes(%q)`,
		issued.Format(time.DateTime)))
}

// TestFormsOfTags: the forms work without a script. They say at the field what is wrong with it, keep what was filled
// in, and refuse what the tag's kind does not have, whatever a browser hides.
func TestFormsOfTags(t *testing.T) {
	w := newWorld(t, 100, "a", "b")
	at, _ := w.console("")
	wrong := regexp.MustCompile(`class="wrong"[^>]*>(.*?)</(?:p|span)>`)
	forms := strings.Split(strings.TrimSpace(formsOfTags), "\n")
	for i, form := range forms {
		form, _, _ = strings.Cut(form, " -> ")
		address, values, _ := strings.Cut(form, " ")
		answer, page := post(t, at+address, values)
		forms[i] = form + " -> " + answer.Status
		for _, m := range wrong.FindAllStringSubmatch(page, -1) {
			forms[i] += "; " + html.UnescapeString(m[1])
		}
	}
	screen(t, "forms", forms...)
	_, refused := post(t, at+"/tags", "name=parcel&period=month&period_digits=13&time_zone=Asia/Tokyo")
	_, label := get(t, at+"/tags/label")
	_, invoice := get(t, at+"/tags/invoice")
	_, text := get(t, at+"/decode?tag=label&id=%3Cb%3E000000042")
	for want, page := range map[string]string{
		`<option selected>month</option>`: refused, `name="period_digits" value="13"`: refused,
		`name="time_zone" value="Asia/Tokyo"`: refused, `id="new-period_digits-hint"><span class="wrong">`: refused,
		"<dt>Format</dt><dd>prefix(&lt;b&gt;) | radix62(9)</dd>": label,
		"<dt>Period</dt><dd>year</dd>":                           invoice,
		"The text stands for ID <b>250</b>.":                     text, "No room has leased this ID": text,
	} {
		if !strings.Contains(page, want) {
			t.Errorf("there is no %s in\n%s", want, page)
		}
	}
	if strings.Contains(label, "<dt>Period</dt>") {
		t.Error("the page of a tag without a period shows one")
	}
	for name, want := range map[allocator.Tag]period.Period{
		"parcel": {Unit: period.Day, Digits: 9, Zone: "UTC"}, "order": {},
		"invoice": {Unit: period.Year, Digits: 7, Zone: "Asia/Shanghai"},
	} {
		if tag, err := w.Admin.Tag(t.Context(), name); err != nil || tag.Period != want {
			t.Errorf("%s: %+v, %v; want %+v", name, tag.Period, err, want)
		}
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

// formsOfTags are forms, and what they are answered.
//
//go:embed testdata/screens/forms.txt
var formsOfTags string
