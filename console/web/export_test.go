package web

import (
	"strings"
	"time"
)

// Addresses returns the addresses of all pages and all forms, with some value in the place of
// each variable.
func Addresses() (pages, actions []string, err error) {
	h, err := New(Config{})
	if err != nil {
		return nil, nil, err
	}
	fill := strings.NewReplacer("{$}", "", "{tag}", "order", "{id}", "01M7ZJKZWRJWBA2S6WT424NRG9").Replace
	for _, p := range h.pages {
		if p.path != "" {
			pages = append(pages, fill(p.path))
		}
	}
	for _, f := range forms {
		actions = append(actions, fill(strings.TrimPrefix(f.pattern, "POST ")))
	}
	return append(pages, "/nothing"), actions, nil
}

// Ticks opens the ticks of one page: made notes that the page was made, and tick returns the tick
// that a stream sends.
func Ticks() (made func(now time.Time), tick func(now time.Time) string) {
	var l live
	l.init(Config{})
	p := &page{}
	return func(now time.Time) { l.made(p, now) }, func(now time.Time) string {
		event, _ := l.tick(p, 0, now)
		return event
	}
}
