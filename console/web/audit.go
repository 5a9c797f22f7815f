package web

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/march-id/march/allocator/ledger/record"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/setting"
)

// auditRow is what an entry changed, for the template changed.
type auditRow struct {
	ID      string
	Changes []difference
	Others  []difference // that are folded away
}

const (
	// auditPage is how many entries a page has, and latestAudit how many the page of an object.
	auditPage, latestAudit = 50, 5
	// shownChanges is how many fields of a change are shown; the others are folded away.
	shownChanges = 6
)

func (h *Handler) audit(c *call) (any, error) {
	q := c.URL.Query()
	r := &marchv1.ListAuditRequest{PageSize: auditPage, PageToken: q.Get("before")}
	if err := c.choose(r, "actor", "action", "object", "exact", "since", "until"); err != nil {
		c.failed, c.err = "audit", err
		return &listPage{}, nil
	}
	answer, err := h.console.ListAudit(c.Context(), r)
	if err != nil {
		return nil, err
	}
	return &listPage{Unreadable: answer.GetUnreadable(), Lists: []*list{auditList(answer.GetEntries())},
		pages: pagesOf(q, "before", answer.GetNextPageToken())}, nil
}

func auditList(entries []*marchv1.AuditEntry) *list {
	columns := append(slices.Clone(setting.Audit), setting.Col("Changed", func(e *marchv1.AuditEntry) cell {
		row := &auditRow{ID: e.GetId(), Changes: differences(e.GetFrom(), e.GetTo())}
		if len(row.Changes) > shownChanges {
			row.Changes, row.Others = row.Changes[:shownChanges-1], row.Changes[shownChanges-1:]
		}
		return cell{Change: row}
	}))
	l := newList("Changes", columns, entries, nil, func(e *marchv1.AuditEntry) listRow {
		return listRow{ID: "a-" + e.GetId()}
	})
	l.Class = "list audit"
	return l
}

// latestChanges returns the latest changes of an object; none if the caller may not read the audit.
func (h *Handler) latestChanges(c *call, object string) (*list, error) {
	answer, err := h.console.ListAudit(c.Context(), &marchv1.ListAuditRequest{PageSize: latestAudit,
		Object: object, Exact: true})
	if denied(err) {
		err = nil
	}
	return auditList(answer.GetEntries()), err
}

// searched reports whether a page shows older entries or those that match a filter:
// each reading of such a page may read thousands.
func searched(q url.Values) bool {
	return q.Get("before")+q.Get("actor")+q.Get("action")+q.Get("object")+q.Get("since")+q.Get("until") != ""
}

// linkOf returns the page of an object.
func linkOf(object string) string {
	kind, name, _ := strings.Cut(object, "/")
	switch record.Kind(kind) {
	case record.Tags, record.Migrations:
		return "/" + kind + "/" + escape(name)
	case record.Registrations:
		room, _, _ := strings.Cut(name, "/")
		return "/instances?room=" + escape(room)
	case record.LayoutKey, record.Layouts:
		return "/"
	}
	return ""
}

// difference is a field of a stored value that a change added, removed or replaced.
type difference struct {
	Field    string // its path, such as rooms.a.lower; empty for the value as a whole
	From, To string // empty for nothing
}

// differences compares two stored values (JSON) field by field, in the order of the fields' names.
// Of values that are no JSON objects it returns the whole.
func differences(from, to string) (list []difference) {
	was, wasObject := fieldsOf(from)
	is, isObject := fieldsOf(to)
	if !wasObject || !isObject {
		was, is = map[string]string{"": from}, map[string]string{"": to}
	}
	names := maps.Clone(was)
	maps.Copy(names, is)
	for _, field := range slices.Sorted(maps.Keys(names)) {
		if was[field] != is[field] {
			list = append(list, difference{Field: field, From: was[field], To: is[field]})
		}
	}
	return list
}

// fieldsOf returns the fields of an object, and reports whether text is one, or nothing. It leaves out
// the number of the value's format and its nonce, which say nothing to operators.
func fieldsOf(text string) (map[string]string, bool) {
	fields := make(map[string]string)
	if text == "" {
		return fields, true
	}
	var value map[string]any
	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.UseNumber()
	if decoder.Decode(&value) != nil || decoder.More() {
		return nil, false
	}
	delete(value, "format")
	delete(value, "nonce")
	if value["time"] != nil { // a tag of kind time has no settings of a counter: they are stored as zeros
		maps.DeleteFunc(value, func(_ string, v any) bool { return v == "0" || v == "0s" })
	}
	flatten("", value, fields)
	return fields, true
}

// flatten adds the fields of a value at a path.
func flatten(path string, value any, to map[string]string) {
	switch v := value.(type) {
	case map[string]any:
		for name, inner := range v {
			flatten(path+"."+name, inner, to)
		}
	case []any:
		for i, inner := range v {
			name := strconv.Itoa(i + 1)
			if object, ok := inner.(map[string]any); ok && object["room"] != nil { // a list by room
				name = fmt.Sprint(object["room"])
				delete(object, "room")
			}
			flatten(path+"."+name, inner, to)
		}
	case nil:
	default:
		text := fmt.Sprint(v)
		if len(text) > 3 && text[0] != '0' && strings.Trim(text, "0123456789") == "" {
			text = num(text)
		}
		to[strings.TrimPrefix(path, ".")] = text
	}
}
