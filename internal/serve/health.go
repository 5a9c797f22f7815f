package serve

import (
	"context"
	"fmt"
	"net/http"
	"strings"
)

// Check is one condition of a server's health.
type Check struct {
	Name string
	// Err is why it failed, or nil.
	Err error
	// Note is more information on a check that passed.
	Note string
	// Family says that the check is of one kind of what the server serves. The server is ready while one of these
	// passes: what is wrong with one family takes no other away from its callers.
	Family bool
}

// Failed returns why a server is not ready, or nil: the error of the first check that failed, or that of the
// first family where all of them failed.
func Failed(checks []Check) (err error) {
	one := false // family passed
	for _, c := range checks {
		switch {
		case c.Err != nil && !c.Family:
			return c.Err
		case c.Err != nil && err == nil:
			err = c.Err
		}
		one = one || c.Family && c.Err == nil
	}
	if one {
		return nil
	}
	return err
}

// answer serves checks as Kubernetes' own servers do: 200 and ok, or 503 and all
// checks, a line each; ?verbose has the lines either way. Below the checks are problems,
// which may be nil.
func answer(name string, checks func(context.Context) []Check,
	problems func(context.Context) []string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		list := checks(r.Context())
		header := w.Header()
		header.Set("Content-Type", "text/plain; charset=utf-8")
		header.Set("Cache-Control", "no-store")
		header.Set("X-Content-Type-Options", "nosniff")
		verdict := "passed"
		if Failed(list) != nil {
			verdict = "failed"
			w.WriteHeader(http.StatusServiceUnavailable)
		} else if !r.URL.Query().Has("verbose") {
			_, _ = fmt.Fprintln(w, "ok")
			return
		}
		var b strings.Builder
		for _, c := range list {
			b.WriteString(c.line())
		}
		if problems != nil {
			for _, p := range problems(r.Context()) {
				b.WriteString("[!]" + oneLine(p) + "\n")
			}
		}
		_, _ = fmt.Fprintf(w, "%s%s check %s\n", b.String(), name, verdict)
	}
}

// line returns a line such as "[+]layout ok: version 3".
func (c Check) line() string {
	mark, text := "[+]"+c.Name+" ok", c.Note
	if c.Err != nil {
		mark, text = "[-]"+c.Name+" failed", c.Err.Error()
	}
	if text != "" {
		text = ": " + oneLine(text)
	}
	return mark + text + "\n"
}

// oneLine joins the lines of a text, which errors.Join makes.
func oneLine(text string) string { return strings.ReplaceAll(text, "\n", "; ") }
