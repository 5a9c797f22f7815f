package tinyid

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/march-id/march/allocator"
)

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// Tokens are read again after a minute. While the file is broken, those read before count.
func TestTokensAreReadAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokens")
	write(t, path, "# token bizType\n\n old  order \n all *\n")
	tokens, err := OpenTokens(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	allows := func(token, bizType string, want bool) {
		t.Helper()
		if got := tokens.Allow(token, bizType); got != want {
			t.Errorf("%s for %s: %t", token, bizType, got)
		}
	}
	later := func() { tokens.read = tokens.read.Add(-time.Minute) }
	allows("old", "order", true)
	allows("old", "user", false)
	allows("all", "user", true)
	allows("", "", false)
	allows("*", "order", false)
	write(t, path, "new order\n")
	allows("old", "order", true) // not yet
	later()
	allows("old", "order", false)
	allows("new", "order", true)
	allows("all", "user", false)
	write(t, path, "new\n")
	later()
	allows("new", "order", true)
}

func TestOpenTokensRefuses(t *testing.T) {
	for text, says := range map[string]string{
		"":                                  "has no token",
		"# none\n":                          "has no token",
		"a b\na\n":                          "line 2 has 1 words; allowed: a token and a bizType",
		"a b c\n":                           "line 1 has 3 words",
		strings.Repeat("a b\n", mostTokens): "has more than 1048576 bytes",
	} {
		path := filepath.Join(t.TempDir(), "tokens")
		write(t, path, text)
		if _, err := OpenTokens(path, nil); allocator.KindOf(err) != allocator.Invalid ||
			!strings.Contains(err.Error(), says) {
			t.Errorf("%.20q: %v; want %s", text, err, says)
		}
	}
	if _, err := OpenTokens(filepath.Join(t.TempDir(), "none"), nil); allocator.KindOf(err) != allocator.Invalid {
		t.Errorf("no file: %v", err)
	}
}
