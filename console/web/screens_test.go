package web_test

import (
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/net/html"
)

var rewrite = flag.Bool("rewrite", false, "make the pictures in docs, and the texts in testdata, anew")

// screen checks that texts are those of a file in testdata/screens. Each may be a page: then it is what a reader finds
// there.
func screen(t testing.TB, name string, texts ...string) {
	t.Helper()
	for i, text := range texts {
		if strings.HasPrefix(text, "<!doctype html>") {
			texts[i] = textOf(text)
		}
	}
	// Some builds of protojson write a space between the fields of a message.
	got := spacedFields.ReplaceAllString(strings.Join(texts, "\n")+"\n", "$1,$2")
	file := filepath.Join("testdata", "screens", name+".txt")
	if *rewrite {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want := must(os.ReadFile(file))(t)
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got); write it anew with -rewrite\n%s", file, diff)
	}
}

var spacedFields = regexp.MustCompile(`(["\]}]|true|false|[:,\[]-?\d+), (["{])`)

// shownTags begin a line of a page, or are named in it, with what the attributes say that a reader needs.
var (
	shownTags = strings.Fields("h1 h2 h3 p li tr dt form caption label summary option input select button a svg meta")
	shownData = strings.Fields("href action name value checked selected aria-invalid aria-label aria-current " +
		"hx-trigger content")
)

// textOf returns the texts of a page's content, and where its links and forms lead. It leaves out each point of charts.
func textOf(page string) string {
	var lines []string
	line, skipped := "", false
	z := html.NewTokenizer(strings.NewReader(page))
	end := func() {
		if line != "" {
			lines = append(lines, line)
		}
		line = ""
	}
	for z.Next() != html.ErrorToken {
		token := z.Token()
		switch {
		case token.Type == html.TextToken && !skipped:
			line = strings.TrimSpace(line + " " + strings.Join(strings.Fields(token.Data), " "))
		case token.Data == "main" && token.Type == html.StartTagToken:
			lines, line = nil, ""
		case token.Data == "main" && token.Type == html.EndTagToken:
			end()
			return strings.Join(lines, "\n")
		case token.Data == "rect" && token.Type == html.StartTagToken:
			skipped = strings.Contains(token.String(), `class="slot"`)
		case token.Data == "rect" || token.Type == html.EndTagToken || !slices.Contains(shownTags, token.Data):
			skipped = skipped && token.Data != "rect"
		default:
			if !slices.Contains([]string{"a", "svg", "button"}, token.Data) {
				end()
			}
			for _, a := range token.Attr {
				if slices.Contains(shownData, a.Key) {
					line = strings.TrimSpace(line + " {" + strings.TrimSuffix(a.Key+"="+a.Val, "=") + "}")
				}
			}
		}
	}
	return strings.Join(lines, "\n")
}
