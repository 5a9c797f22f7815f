package web

import (
	"net/http"
	"net/url"
	"slices"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
)

// previewView is what a change of a tag's settings would do, before it is made.
type previewView struct {
	*marchv1.UpdateTagResponse
	Changes  []difference
	Revision int64      // of the settings that the change is compared with
	Form     url.Values // the form as it was filled in
}

// settingsFields are the fields of the form, which a confirmed preview repeats.
var settingsFields = []string{"kind", "limit", "reserve", "min_step", "max_step", "max_jump", "max_skew",
	"strict_retract", "sequence", "carry_to", "random_below", "rollback", "max_wait"}

// readSettings reads the form of a tag's settings as a change. Its error is Invalid.
func readSettings(c *call) (t *marchv1.Tag, err error) {
	t = &marchv1.Tag{}
	if c.FormValue("kind") == kindTime {
		t.Time, err = readTime(c, false)
	} else {
		t, err = readTag(c, false)
	}
	if err != nil {
		return nil, err
	}
	t.Name = c.PathValue("tag")
	return t, nil
}

// newPreview asks what the change in the form would do; it returns nil if there is none. A change
// that was refused, because meanwhile another one was made or it stops rooms, is shown again.
func (h *Handler) newPreview(c *call, now *marchv1.Tag) *previewView {
	kind := allocator.KindOf(c.err)
	again := c.failed == "settings" && (kind == allocator.Refused || kind == allocator.Conflict)
	if !again && (c.Method != http.MethodGet || c.URL.Query().Get("do") != "settings") {
		return nil
	}
	c.asked = "settings"
	refuse := func(err error) *previewView {
		if !again {
			c.failed, c.err = "settings", err
		}
		return nil
	}
	change, err := readSettings(c)
	if err != nil {
		return refuse(err)
	}
	answer, err := h.console.UpdateTag(c.Context(), &marchv1.UpdateTagRequest{Tag: change, DryRun: true})
	if err != nil {
		return refuse(err)
	}
	v := &previewView{UpdateTagResponse: answer, Revision: now.GetRevision(), Form: make(url.Values)}
	was, is := settingsOf(now), settingsOf(answer.GetTag())
	for i := range is {
		if was[i] != is[i] {
			v.Changes = append(v.Changes, difference{Field: is[i].name, From: was[i].value, To: is[i].value})
		}
	}
	if len(v.Changes) == 0 {
		return refuse(allocator.Errorf(allocator.Invalid,
			"nothing was changed: these are the settings that the tag has"))
	}
	for field, values := range c.Form {
		if slices.Contains(settingsFields, field) {
			v.Form[field] = values
		}
	}
	return v
}

// setting is a setting in words.
type setting struct{ name, value string }

// settingsOf returns the settings that the form changes.
func settingsOf(t *marchv1.Tag) []setting {
	if p := t.GetTime(); p != nil {
		return []setting{
			{"Sequence", api.Word(p.GetSequence())}, {"Carry to", num(p.GetCarryTo())},
			{"Random below", num(p.GetRandomBelow())},
			{"Rollback", api.Word(p.GetRollback())}, {"Longest wait", shortest(p.GetMaxWait().AsDuration())},
		}
	}
	strict := "no"
	if t.GetStrictRetract() {
		strict = "yes"
	}
	return []setting{
		{"Limit", num(t.GetLimit())}, {"Reserve", shortest(t.GetReserve().AsDuration())},
		{"Least step", num(t.GetMinStep())}, {"Largest step", num(t.GetMaxStep())},
		{"Largest jump", num(t.GetMaxJump())}, {"Largest skew", num(t.GetMaxSkew())}, {"Strict", strict},
	}
}

func (h *Handler) updateTag(c *call) (string, error) {
	t, err := readSettings(c)
	if err != nil {
		return "", err
	}
	request := &marchv1.UpdateTagRequest{Tag: t, Confirm: c.FormValue("confirm") != ""}
	if c.FormValue("revision") != "" {
		if request.IfRevision, err = number(c, "revision"); err != nil {
			return "", err
		}
	}
	if _, err := h.console.UpdateTag(c.Context(), request); err != nil {
		return "", err
	}
	return "/tags/" + escape(t.GetName()) + "?done=saved", nil
}
