package web

import (
	"net/url"
	"strings"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/internal/setting"
)

// problem is why a form was refused, for its template.
type problem struct {
	Field string // "" for the form as a whole
	Text  string
}

// problemOf returns why a form was refused, nil if it was not. A message begins with its field's
// name, in the place of which the page shows the field's label. If the form has that field, the
// message is shown next to it, otherwise above the form.
func (c *call) problemOf(form string, fields ...string) *problem {
	if c.failed != form || c.err == nil || allocator.KindOf(c.err) == allocator.Denied { // the page shows that one
		return nil
	}
	text := c.err.Error()
	for _, field := range fields {
		if strings.HasPrefix(text, field+":") || strings.HasPrefix(text, strings.ReplaceAll(field, "_", " ")+":") {
			_, text, _ = strings.Cut(text, ": ") // the page shows the field's label
			return &problem{Field: field, Text: labelled(text)}
		}
	}
	return &problem{Text: sentence(labelled(text))}
}

// labels has the names of settings in messages about others, as pages show them.
var labels = func() *strings.Replacer {
	var names []string
	for _, s := range setting.Settings(setting.Any, true) {
		names = append(names, s.Name(), s.Words())
	}
	return strings.NewReplacer(names...)
}()

// labelled returns a message with fields as pages call them, and the digits of numbers in groups, but
// for what stands in quotes: that is as it was typed.
func labelled(text string) string {
	parts := strings.Split(text, `"`)
	for i := 0; i < len(parts); i += 2 {
		parts[i] = grouped(labels.Replace(parts[i]))
	}
	return strings.Join(parts, `"`)
}

// filled reports whether the request has a form as the user filled it in.
func (c *call) filled(form string) bool { return c.asked == form || c.failed == form && c.err != nil }

// or returns the user's input if the request has the form, otherwise value.
func (c *call) or(form, field, value string) string {
	if c.filled(form) && c.Form.Has(field) {
		return c.FormValue(field)
	}
	return value
}

// with returns a query with values set; "" removes a name.
func with(q url.Values, pairs ...string) string {
	next := url.Values{}
	for name, values := range q {
		if name != "done" {
			next[name] = values
		}
	}
	for i := 0; i < len(pairs); i += 2 {
		if next.Del(pairs[i]); pairs[i+1] != "" {
			next.Set(pairs[i], pairs[i+1])
		}
	}
	return "?" + next.Encode()
}

// number parses a form's number. Its error is Invalid.
func number(c *call, field string) (int64, error) {
	n, err := parseInt(c.FormValue(field))
	if err != nil {
		return 0, allocator.Errorf(allocator.Invalid, "%s: %q; allowed: a whole number, 0 to %d", field,
			c.FormValue(field), int64(allocator.MaxID))
	}
	return n, nil
}

// period parses a form's duration. Its error is Invalid.
func period(c *call, field string) (time.Duration, error) {
	d, err := time.ParseDuration(strings.ReplaceAll(c.FormValue(field), " ", ""))
	if err != nil {
		return 0, allocator.Errorf(allocator.Invalid,
			"%s: %q; allowed: a duration such as 30s, 10m or 1h30m", field, c.FormValue(field))
	}
	return d, nil
}

func escape(s string) string { return url.PathEscape(s) }
