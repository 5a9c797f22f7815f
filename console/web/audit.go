package web

import (
	"bytes"
	"encoding/json"
	"net/url"
	"strings"

	marchv1 "github.com/march-id/march/api/march/v1"
)

type auditView struct {
	Actor, Action, Object string
	Rows                  []auditRow
	Older                 string // address of the next page
	Newer                 bool
	Filtered              bool
	Unreadable            []*marchv1.Unreadable
}

type auditRow struct {
	*marchv1.AuditEntry
	Link     string // to the object's page, empty if it has none
	From, To string // in lines
}

// auditPage is how many entries a page has.
const auditPage = 50

func (h *Handler) audit(c *call) (string, any, error) {
	q := c.URL.Query()
	v := &auditView{Actor: q.Get("actor"), Action: q.Get("action"), Object: q.Get("object"), Newer: q.Get("before") != ""}
	v.Filtered = v.Actor+v.Action+v.Object != ""
	list, err := h.console.ListAudit(c.Context(), &marchv1.ListAuditRequest{
		PageSize: auditPage, PageToken: q.Get("before"), Actor: v.Actor, Action: v.Action, Object: v.Object,
	})
	if err != nil {
		return "", nil, err
	}
	v.Unreadable = list.GetUnreadable()
	for _, e := range list.GetEntries() {
		v.Rows = append(v.Rows, auditRow{AuditEntry: e, Link: linkOf(e.GetObject()), From: lines(e.GetFrom()), To: lines(e.GetTo())})
	}
	if next := list.GetNextPageToken(); next != "" {
		v.Older = with(q, "before", next)
	}
	return "Audit", v, nil
}

// searched reports whether a page shows older entries or those that match a filter:
// each reading of such a page may read thousands.
func searched(q url.Values) bool {
	return q.Get("before")+q.Get("actor")+q.Get("action")+q.Get("object") != ""
}

// linkOf returns the page of an object.
func linkOf(object string) string {
	kind, name, _ := strings.Cut(object, "/")
	switch kind {
	case "tags", "migrations":
		return "/" + kind + "/" + escape(name)
	case "rooms":
		room, _, _ := strings.Cut(name, "/")
		return "/instances?room=" + escape(room)
	case "layout", "layouts":
		return "/"
	}
	return ""
}

// lines indents JSON. It returns other texts unchanged.
func lines(text string) string {
	var out bytes.Buffer
	if text == "" || json.Indent(&out, []byte(text), "", "\u00a0\u00a0") != nil {
		return text
	}
	return out.String()
}
