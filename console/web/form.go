package web

import (
	"cmp"
	"net/url"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"

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

// fill sets the fields of a request that are in a form: texts, and boxes that are not ticked. A list has boxes of its
// own. Its error is Invalid.
func (c *call) fill(request proto.Message, settings ...setting.Setting) error {
	for _, s := range settings {
		text := c.text(s)
		switch s.Type() {
		case "stringSlice":
			continue
		case "bool":
			text = strconv.FormatBool(text != "")
		}
		if err := s.Set(request, text); err != nil {
			return allocator.Errorf(allocator.Invalid, "%s: %w", s.Name(), err)
		}
	}
	return nil
}

// text returns what was typed for a setting, in the way of flags: numbers without separators.
func (c *call) text(s setting.Setting) string {
	text := c.FormValue(s.Name())
	switch n, err := parseInt(text); {
	case s.Type() == "int" && err == nil:
		return strconv.FormatInt(n, 10)
	case s.Type() == "duration":
		return strings.ReplaceAll(text, " ", "")
	}
	return text
}

// settingField is a setting as a form has it, for the template of that name.
type settingField struct {
	Form, Name, Label, Value, Hint string
	None                           string   // what stands for no choice
	Of                             []string // what may be chosen; nil for a text
	Digits, Box, Required          bool
	P                              *problem
}

// field returns the field of a setting: form is the form that the request has, prefix begins the names of elements,
// and text is the value where the user has typed none.
func (c *call) field(form, prefix string, s setting.Setting, text string, p *problem) settingField {
	field := settingField{Form: prefix, Name: s.Name(), Label: sentence(s.Words()), Hint: grouped(s.Help),
		Value: c.or(form, s.Name(), shown(s, text)), Of: s.Choices(), P: p,
		Digits: s.Type() == "int", Box: s.Type() == "bool"}
	if field.Box {
		field.Value = ""
		if on := text == "true"; c.filled(form) && c.FormValue(s.Name()) != "" || !c.filled(form) && on {
			field.Value = "on" // browsers do not send an unticked box
		}
	}
	return field
}

// fields returns the fields of a request that must be filled in, and boxes.
func (c *call) fields(form, prefix string, settings []setting.Setting, request proto.Message,
	p *problem) (list []settingField) {
	for _, s := range settings {
		if s.Type() != "stringSlice" {
			field := c.field(form, prefix, s, cmp.Or(s.Text(request), s.Default()), p)
			field.Required = !field.Box
			list = append(list, field)
		}
	}
	return list
}

func escape(s string) string { return url.PathEscape(s) }
