package web

import (
	"fmt"
	"html/template"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
	wrong "github.com/march-id/march/internal/problem"
	"github.com/march-id/march/internal/words"
)

func (h *Handler) functions() template.FuncMap {
	return template.FuncMap{
		"asset": h.assets.address, "num": num, "rate": rate, "percent": percent, "ago": ago,
		"clock": timed("15:04:05"), "stamp": timed(stampLayout), "milli": timed("2006-01-02 15:04:05.000 UTC"),
		"hue": hue, "pattern": pattern,
		"short": short, "escape": escape, "sentence": sentence, "prose": prose, "headline": headline,
		"about":   wrong.About,
		"until":   wrong.Until,
		"counted": words.Counted, "grouped": grouped, "groups": groups, "word": api.Word,
		"add":      func(a, b int) int { return a + b },
		"interval": interval,
		"join":     func(list []string) string { return strings.Join(list, ", ") },
		"brief":    func(d *durationpb.Duration) string { return shortest(d.AsDuration()) },
		"low":      func(d *durationpb.Duration) bool { return d != nil && d.AsDuration() < lowReserve },
		"share":    func(r *marchv1.Range, of int64) float64 { return partOf(r.GetUpper()-r.GetLower(), of) / 100 },
		"spark":    func(rates []float64) spark { return newSpark("", rates, api.RatesKept) },
		"pick": func(p *problem, field string) string {
			if p != nil && p.Field == field {
				return p.Text
			}
			return ""
		},
		"dict": func(pairs ...any) map[string]any {
			m := make(map[string]any, len(pairs)/2)
			for i := 0; i+1 < len(pairs); i += 2 {
				m[fmt.Sprint(pairs[i])] = pairs[i+1]
			}
			return m
		},
	}
}

// element writes a time as an element for browsers, which tells the local time, too (march.js).
func element(t *timestamppb.Timestamp, text string) template.HTML {
	if t == nil {
		return template.HTML(text) //nolint:gosec // no user's text
	}
	return template.HTML(`<time datetime="` + t.AsTime().UTC().Format(time.RFC3339) + `">` + text +
		"</time>") //nolint:gosec // no user's text
}

// timed returns a function that writes a time in a layout.
func timed(layout string) func(*timestamppb.Timestamp) template.HTML {
	return func(t *timestamppb.Timestamp) template.HTML { return element(t, at(t, layout)) }
}

// code is a command in a message.
var code = regexp.MustCompile("`([^`]*)`")

// prose returns a message with its commands as code.
func prose(message any) template.HTML {
	text := template.HTMLEscapeString(fmt.Sprint(message))
	return template.HTML(code.ReplaceAllString(text, "<code>$1</code>")) //nolint:gosec // escaped
}

// headline returns a problem as a sentence that stands out, up to the error in it if it has one.
func headline(what string) template.HTML {
	head, cause, found := strings.Cut(what, ": ")
	if found {
		return template.HTML("<b>" + template.HTMLEscapeString(sentence(head)) + "</b>: " +
			template.HTMLEscapeString(cause) + ".") //nolint:gosec // escaped
	}
	return template.HTML("<b>" + template.HTMLEscapeString(sentence(what)) + ".</b>") //nolint:gosec // escaped
}

// sentence returns words with their first letter large.
func sentence(s string) string {
	if s == "" {
		return s
	}
	return strings.ToUpper(s[:1]) + s[1:]
}

// separators stand between digits of numbers that are typed or pasted, also as num writes
// them.
var separators = strings.NewReplacer(",", "", " ", "", "_", "", "\u00a0", "", "\u202f", "")

// parseInt parses a whole number from 0 on, with or without separators between digits.
func parseInt(s string) (int64, error) {
	n, err := strconv.ParseUint(separators.Replace(s), 10, 63)
	return int64(n), err //nolint:gosec // 63 bits
}

// num returns a whole number with its digits in groups.
func num(n any) string { return words.Grouped(n) }

// longNumber is a number in a sentence whose digits are to be grouped.
var longNumber = regexp.MustCompile(`\b\d{5,}\b`)

// grouped returns a sentence with the digits of its numbers in groups.
func grouped(text string) string {
	return longNumber.ReplaceAllStringFunc(text, func(digits string) string { return num(digits) })
}

// rate returns IDs per second, with three digits or so.
func rate(perSecond float64) string {
	switch {
	case perSecond < 0:
		return "–"
	case perSecond == 0:
		return "0"
	case perSecond < 10:
		return strconv.FormatFloat(perSecond, 'f', 1, 64)
	case perSecond < 100_000:
		return num(int64(math.Round(perSecond)))
	case perSecond < 1e6:
		return strconv.FormatFloat(perSecond/1e3, 'f', 0, 64) + " k"
	case perSecond < 1e9:
		return strconv.FormatFloat(perSecond/1e6, 'f', 1, 64) + " M"
	}
	return strconv.FormatFloat(perSecond/1e9, 'f', 1, 64) + " G"
}

func percent(share float64) string {
	switch {
	case share > 0 && share < 0.0001:
		return "< 0.01%"
	case share < 0.1:
		return strconv.FormatFloat(100*share, 'f', 2, 64) + "%"
	}
	return strconv.FormatFloat(100*share, 'f', 1, 64) + "%"
}

func short(p *durationpb.Duration) string {
	if p == nil {
		return "–"
	}
	return words.Short(p.AsDuration())
}

// lasts returns a long time, which may be longer than a time.Duration can hold.
func lasts(p *durationpb.Duration, ends *timestamppb.Timestamp) string {
	return words.Lasts(p, ends, "–")
}

// left returns how long it is until a time, which may have come.
func left(t *timestamppb.Timestamp) *durationpb.Duration {
	return durationpb.New(max(time.Until(t.AsTime()), 0))
}

// ago returns how long ago a time was.
func ago(t *timestamppb.Timestamp) template.HTML {
	d := time.Since(t.AsTime())
	switch {
	case t == nil:
		return "–"
	case d < 2*time.Second:
		return element(t, "now")
	}
	return element(t, words.Short(d)+" ago")
}

// stampLayout is how people read a time with its day. The zone is UTC, so that two screens in two countries show the
// same.
const stampLayout = "2006-01-02 15:04:05 UTC"

func stamp(t *timestamppb.Timestamp) string { return at(t, stampLayout) }

func at(t *timestamppb.Timestamp, layout string) string {
	if t == nil {
		return "–"
	}
	return t.AsTime().UTC().Format(layout)
}

// shortest writes a duration as a form shows it: 10m and not 10m0s.
func shortest(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// groups returns a text, of which a number may break between its groups of digits.
func groups(text string) template.HTML {
	text = template.HTMLEscapeString(text)
	if strings.Trim(text, "0123456789,") == "" {
		text = strings.ReplaceAll(text, ",", ",<wbr>")
	}
	return template.HTML(text) //nolint:gosec // escaped above
}

func interval(r *marchv1.Range) string {
	if r == nil {
		return "no range"
	}
	return "[" + num(r.GetLower()) + ", " + num(r.GetUpper()) + ")"
}
