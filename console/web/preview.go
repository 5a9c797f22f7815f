package web

import (
	"net/http"
	"net/url"

	"github.com/march-id/march/allocator"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/setting"
)

// previewView is what a change of a tag's settings would do, before it is made.
type previewView struct {
	*marchv1.UpdateTagResponse
	Changes  []difference
	Revision int64      // of the settings that the change is compared with
	Form     url.Values // the form as it was filled in
}

// readChange reads the form of a tag's settings as a change. Its error is Invalid.
func readChange(c *call) (*marchv1.Tag, error) {
	t, err := c.readSettings(false)
	if err == nil {
		t.Name = c.PathValue("tag")
	}
	return t, err
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
	change, err := readChange(c)
	if err != nil {
		return refuse(err)
	}
	answer, err := h.console.UpdateTag(c.Context(), &marchv1.UpdateTagRequest{Tag: change, DryRun: true})
	if err != nil {
		return refuse(err)
	}
	v := &previewView{UpdateTagResponse: answer, Revision: now.GetRevision(), Form: make(url.Values)}
	settings := setting.Settings(setting.KindOf(now), false)
	for _, s := range setting.Diff(settings, now, answer.GetTag()) {
		v.Changes = append(v.Changes, difference{Field: sentence(s.Words()), From: shown(s.Setting, s.From),
			To: shown(s.Setting, s.To)})
	}
	if len(v.Changes) == 0 {
		return refuse(allocator.Errorf(allocator.Invalid,
			"nothing was changed: these are the settings that the tag has"))
	}
	v.Form.Set("kind", setting.KindOf(now).String())
	for _, s := range settings {
		if values, ok := c.Form[s.Name()]; ok {
			v.Form[s.Name()] = values
		}
	}
	return v
}

func (h *Handler) updateTag(c *call) (string, error) {
	t, err := readChange(c)
	if err != nil {
		return "", err
	}
	request := &marchv1.UpdateTagRequest{Tag: t, Confirm: c.FormValue("confirm") != ""}
	if text := c.FormValue("revision"); text != "" {
		if request.IfRevision, err = parseInt(text); err != nil {
			return "", allocator.Errorf(allocator.Invalid, "revision: %q; allowed: one that this page made", text)
		}
	}
	if _, err := h.console.UpdateTag(c.Context(), request); err != nil {
		return "", err
	}
	return "/tags/" + escape(t.GetName()) + "?done=saved", nil
}
