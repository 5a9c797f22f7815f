package web

import (
	"cmp"
	"context"
	"maps"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/march-id/march/allocator"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/setting"
)

// form is a change that a page offers.
type form struct {
	pattern, name string
	page          string // that has the form, and shows it again if it is refused
	done          string // the parameter with which the next page shows the notice
	notice        notice
	// change makes the change. It returns the page to go on to; empty is the form's own.
	change func(*Handler, *call) (to string, err error)
}

// notice is what a page shows after a change.
type notice struct {
	Text  string
	While string // the state of the migration for which it is true (style.css hides it in others); empty for any
}

type console = marchv1.ConsoleServiceClient

var forms = []form{
	{"POST /tags", "create", "tags", "created", notice{Text: "The tag was created."}, (*Handler).createTag},
	{"POST /tags/{tag}/settings", "settings", "tag", "saved",
		notice{Text: "The settings were saved; rooms apply them at once."}, send(console.UpdateTag, readUpdate)},
	{"POST /tags/{tag}/skip", "skip", "tag", "skipped",
		notice{Text: "Done: rooms lease only IDs from that number on."}, send(console.SkipTag, readSkip)},
	{"POST /tags/{tag}/prescale", "prescale", "tag", "prescaled",
		notice{Text: "Done: instances lease the IDs now."}, send(console.PrescaleTag, readPrescale)},
	{"POST /migrations", "apply", "migrations", "started", notice{"The migration has begun.", "running"},
		(*Handler).applyMigration},
	{"POST /migrations/{id}/pause", "steer", "migration", "paused",
		notice{"The migration stops before its next move.", "paused"}, send(console.PauseMigration, nil)},
	{"POST /migrations/{id}/resume", "steer", "migration", "resumed", notice{"The migration goes on.", "running"},
		send(console.ResumeMigration, nil)},
	{"POST /migrations/{id}/abort", "steer", "migration", "aborted", notice{"The migration goes back.", "back"},
		send(console.AbortMigration, nil)},
	{"POST /migrations/{id}/continue", "steer", "migration", "continued",
		notice{"The migration goes on without these instances.", "running"},
		send(console.ContinueMigration, readContinue)},
	{"POST /instances/forget", "forget", "instances", "forgotten", notice{Text: "The instance was forgotten."},
		send(console.ForgetInstance, func(c *call, r *marchv1.ForgetInstanceRequest) error {
			r.Room, r.Name = c.FormValue("of"), c.FormValue("name")
			return nil
		})},
}

func noticeOf(done string) notice {
	for _, f := range forms {
		if f.done == done {
			return f.notice
		}
	}
	return notice{}
}

// send returns a change that is one call. Its request is of the tag or migration of the page, and read adds what the
// form has; nil adds nothing.
func send[R, A any, P interface {
	*R
	proto.Message
}](method func(console, context.Context, P, ...grpc.CallOption) (A, error),
	read func(*call, P) error) func(*Handler, *call) (string, error) {
	return func(h *Handler, c *call) (string, error) {
		request := P(new(R))
		for part, name := range map[string]protoreflect.Name{"tag": "name", "id": "id"} {
			m := request.ProtoReflect()
			if f := m.Descriptor().Fields().ByName(name); f != nil && c.PathValue(part) != "" {
				m.Set(f, protoreflect.ValueOfString(c.PathValue(part)))
			}
		}
		if read != nil {
			if err := read(c, request); err != nil {
				return "", err
			}
		}
		_, err := method(h.console, c.Context(), request)
		return "", err
	}
}

// change makes the change of a form. If it is refused, the page has the form as it was filled in.
func (h *Handler) change(w http.ResponseWriter, r *http.Request, f form) {
	r.Body = http.MaxBytesReader(w, r.Body, maxForm)
	c, p := &call{Request: r, failed: f.name}, h.pages[f.page]
	if c.err = r.ParseForm(); c.err != nil {
		c.err = allocator.Errorf(allocator.Invalid, "form: %w", c.err)
		h.show(w, p, c)
		return
	}
	ctx, cancel := context.WithTimeout(actor(r), buildWithin)
	defer cancel()
	c.Request = r.WithContext(ctx)
	to, err := f.change(h, c)
	if c.err = err; err != nil {
		h.show(w, p, c)
		return
	}
	at := url.URL{Path: cmp.Or(to, p.shownAt(c)), RawQuery: url.Values{"done": {f.done}}.Encode()}
	http.Redirect(w, r, at.String(), http.StatusSeeOther)
}

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

// asks reports whether the request has a form, the effect of which is shown before it is confirmed, or which was
// refused.
func (c *call) asks(form string) bool {
	if c.Method == http.MethodGet && c.URL.Query().Get("do") == form {
		_ = c.ParseForm() // the page shows the fields that can be read
		c.asked = form
	}
	return c.asked == form || c.failed == form
}

// preview reads a form that the request asks for, and returns why it is refused, by the fields that it has.
func (c *call) preview(form string, read func() error, fields ...string) *problem {
	if c.asks(form) && c.problemOf(form, fields...) == nil {
		if err := read(); err != nil {
			c.failed, c.err = form, err
		}
	}
	return c.problemOf(form, fields...)
}

// sent returns the fields that the user sent, for a form that sends them again.
func (c *call) sent() url.Values {
	fields := maps.Clone(c.Form)
	for _, name := range []string{"do", "done", "revision", "confirm"} {
		fields.Del(name)
	}
	return fields
}

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

// choose sets the fields of a request that a filter has. Its error is Invalid.
func (c *call) choose(request proto.Message, fields ...string) error {
	for _, name := range fields {
		if c.FormValue(name) != "" {
			if err := c.fill(request, setting.Of(request, name, "")); err != nil {
				return err
			}
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

// field is a field of a form or a filter, for the template of that name.
type field struct {
	ID, Name, Label, Value, Hint string
	Type, Place                  string   // Type is checkbox, or that of an input; empty for a text
	None                         string   // what stands for no choice
	Of                           []string // what may be chosen; nil for a text
	Digits, Required             bool
	Most                         int    // letters; 0 for no bound
	Bare                         bool   // it has no box around it, in a filter
	Room                         string // in a row of a list, where it has no ID and its label is not drawn
	Wrong                        string // the element that says what is wrong with it, in such a row
	P                            *problem
}

// field returns the field of a setting: form is the form that the request has, prefix begins the names of elements,
// and text is the value where the user has typed none.
func (c *call) field(form, prefix string, s setting.Setting, text string, p *problem) field {
	f := field{ID: prefix + "-" + s.Name(), Name: s.Name(), Label: sentence(s.Words()), Hint: grouped(s.Help),
		Value: c.or(form, s.Name(), shown(s, text)), Of: s.Choices(), P: p, Digits: s.Type() == "int"}
	if s.Type() == "bool" {
		f.Type, f.Value = "checkbox", ""
		if on := text == "true"; c.filled(form) && c.FormValue(s.Name()) != "" || !c.filled(form) && on {
			f.Value = "on" // browsers do not send an unticked box
		}
	}
	return f
}

// filter is a form that chooses what a page shows, for the template of that name.
type filter struct {
	Button, Class string
	All           string // the label of the link to the page without a filter; empty for none
	Main          bool   // it is what the page is for
	Fields        []field
	// As a request has it:
	Action  string
	Given   bool // a field
	Problem *problem
}

// ofRoom is the field of a filter by room.
var ofRoom = field{ID: "of-room", Name: "room", Label: "Room", None: "all", Bare: true}

// filled returns the page's filter as a request has it; nil for none. A box is there where it is ticked.
func (p *page) filled(c *call) *filter {
	if p.filter == nil {
		return nil
	}
	f := *p.filter
	f.Action, f.Fields = p.path, nil
	names := make([]string, len(p.filter.Fields))
	for i, one := range p.filter.Fields {
		names[i] = one.Name
	}
	f.Problem = c.problemOf(p.name, names...)
	for _, one := range p.filter.Fields {
		one.ID, one.Value, one.P = cmp.Or(one.ID, one.Name), c.query().Get(one.Name), f.Problem
		if one.Name == ofRoom.Name {
			one.Of = c.layout.GetEver()
		}
		f.Given = f.Given || one.Value != ""
		if one.Type != "checkbox" || one.Value != "" {
			f.Fields = append(f.Fields, one)
		}
	}
	return &f
}

// fields returns the fields of a request that must be filled in, and boxes.
func (c *call) fields(form, prefix string, settings []setting.Setting, request proto.Message,
	p *problem) (list []field) {
	for _, s := range settings {
		if s.Type() != "stringSlice" {
			f := c.field(form, prefix, s, cmp.Or(s.Text(request), s.Default()), p)
			f.Required = f.Type == ""
			list = append(list, f)
		}
	}
	return list
}

func escape(s string) string { return url.PathEscape(s) }
