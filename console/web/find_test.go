package web_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/internal/testcluster"
)

// The palette leads to pages, tags and rooms, and copies commands, by the keyboard alone. Shortcuts
// have a list, in which those without Ctrl can be turned off.
func (b *browser) palette(t *testing.T) {
	w := newWorld(t, 100, "a", "berlin")
	at, _ := w.console("")
	w.tag("order", "order-2")
	p := b.open(t, at)
	open := func() {
		t.Helper()
		p.until("the page has its scripts",
			`document.querySelector("#link").className`)
		p.do(chromedp.KeyEvent("k", chromedp.KeyModifiers(chromedp.ModifierCtrl)))
		p.until("the palette is open",
			`document.querySelector("dialog[open] input") === document.activeElement && document.querySelectorAll("[role=option]").length > 8`)
	}
	p.visit("/")
	open()
	p.accessible("the palette")
	p.keys("order-")
	p.until("the tag is found",
		`[...document.querySelectorAll("[role=option]")].some((o) => o.dataset.link === "/tags/order-2")`)
	p.keys(kb.Enter)
	p.until("its page", `location.pathname === "/tags/order-2"`)
	open()
	p.keys("berl")
	p.until("the room is found",
		`document.querySelector("[role=option][aria-selected=true]")?.dataset.link === "/instances?room=berlin"`)
	p.keys(kb.Escape)
	p.until("the palette is closed", `!document.querySelector("dialog")`)
	open()
	p.keys("doctor")
	p.until("the command is found",
		`document.querySelector("[role=option][aria-selected=true]")?.dataset.copy === "march doctor"`)
	eval[bool](p, `(navigator.clipboard.writeText = async (t) => { window.copied = t }, true)`)
	p.keys(kb.Enter)
	p.until("it is copied",
		`window.copied === "march doctor" && document.querySelector("dialog [role=status]").innerText === "Copied: march doctor"`)
	p.keys(kb.Escape)
	p.until("the palette is closed", `!document.querySelector("dialog")`)

	// At once, as the page waits 1.5 s for the second key.
	eval[bool](p, `["g", "a"].every((key) => document.body.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true })))`)
	p.until("the audit", `location.pathname === "/audit"`)
	p.visit("/audit")
	p.keys("?")
	p.says("Find a page, tag, room or command")
	p.accessible("the list of shortcuts")
	p.click(css("#single-keys"))
	p.keys(kb.Escape)
	p.until("the list is closed", `!document.querySelector("dialog")`)
	p.keys("?")
	open() // so the key before did nothing
	p.keys(kb.Escape)
	p.until("the palette is closed", `!document.querySelector("dialog")`)
	p.click(css(".foot a"))
	p.click(css("#single-keys"))
	p.click(button("Close"))
	p.keys("n")
	p.until("the form of a new tag is open",
		`location.pathname === "/tags" && document.querySelector("details[open] #new-name")`)

	p.visit("/tags/order")
	eval[bool](p, `(navigator.clipboard.writeText = async (t) => { window.copied = t }, true)`)
	p.click(`document.querySelectorAll(".facts .copy")[1]`)
	p.until("a number is copied without separators", `window.copied === "9223372036854775807"`)
}

// TestFind: the page finds without a script what the palette finds, in large and small letters.
func TestFind(t *testing.T) {
	w := newWorld(t, 100, "a", "berlin")
	at, _ := w.console("")
	w.tag("order")
	for search, want := range map[string]string{
		"":        `<a href="/tags">Tags</a>`,
		"ORD":     `<a href="/tags/order">order</a>`,
		"Berlin":  `<a href="/instances?room=berlin">berlin</a>`,
		"1,234":   `<a href="/decode?id=1%2C234">Decode ID 1,234</a>`,
		"status":  `<code>march status</code> <button type="button" class="copy" data-copy="march status"`,
		"nowhere": "Nothing is called “nowhere”.",
	} {
		awaitTags(t, at)
		if _, page := get(t, at+"/find?search="+strings.ReplaceAll(search, ",", "%2C")); !strings.Contains(page, want) {
			t.Errorf("%q does not find %s:\n%s", search, want, page)
		}
	}
}

// The first tags and rooms are shown, and that there are more.
func TestFindSaysThatThereAreMore(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 100, "a")
	at, _ := w.console("")
	tags := make([]allocator.Tag, 9)
	for k := range tags {
		tags[k] = allocator.Tag(fmt.Sprint("many-", k))
	}
	w.tag(tags...)
	const more = "There are more: type more of the name."
	testcluster.Await(t, "the tags are read", func() bool {
		_, page := get(t, at+"/find?search=many")
		return strings.Contains(page, "many-7") && !strings.Contains(page, "many-8") && strings.Contains(page, more)
	})
	if _, page := get(t, at+"/find?search=many-8"); !strings.Contains(page, "/tags/many-8") ||
		strings.Contains(page, more) {
		t.Errorf("one tag:\n%s", page)
	}
}
