package policy_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/march-id/march/internal/access/policy"
)

// TestSecurityDoc compares the table of calls in docs/security.md with the table of this package.
func TestSecurityDoc(t *testing.T) {
	content, err := os.ReadFile("../../../docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	doc := string(content)
	var want strings.Builder
	for _, c := range policy.Calls() {
		roles, tags, rooms := c.Needs()
		without := "`UNAUTHENTICATED` without an identity, `PERMISSION_DENIED` without the right"
		if c.Open() {
			roles, without = "none", "is open to all"
		}
		fmt.Fprintf(&want, "| `%s` | %s | %s | %s | %s |\n", c.Name(), roles, tags, rooms, without)
	}
	const head = "| call | role | tags | rooms | without |\n|---|---|---|---|---|\n"
	_, table, _ := strings.Cut(doc, head)
	if table, _, _ = strings.Cut(table, "\n\n"); table+"\n" != want.String() {
		t.Errorf("the table of docs/security.md is not that of the calls; it should be\n%s", want.String())
	}
}

// The policy in the documentation is one.
func TestExampleInDoc(t *testing.T) {
	content, err := os.ReadFile("../../../docs/access.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(content), "## The policy\n")
	_, text, ok := strings.Cut(section, "```yaml\n")
	text, _, _ = strings.Cut(text, "```")
	if !ok {
		t.Fatal("docs/access.md has no example")
	}
	if _, err := policy.Parse("policy.yaml", []byte(text)); err != nil {
		t.Error(err)
	}
}
