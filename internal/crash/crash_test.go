package crash_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/march-id/march/internal/crash"
)

// Every listed point is passed somewhere in the code, and the code has no other point. So a
// schedule that draws from the list draws only points that exist.
func TestPointsAreInTheCode(t *testing.T) {
	found := make(map[string]int)
	call := regexp.MustCompile(`crash\.Here\(crash\.(\w+)\)`)
	err := filepath.WalkDir("../..", func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, m := range call.FindAllStringSubmatch(string(text), -1) {
			found[m[1]]++
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range crash.Points() {
		name := constant(p.Name)
		if found[name] == 0 {
			t.Errorf("no code passes crash.%s", name)
		}
		delete(found, name)
		if !slices.Contains([]crash.Where{crash.Room, crash.Console, crash.Recover}, p.In) {
			t.Errorf("%s is in %q", p.Name, p.In)
		}
	}
	if len(found) > 0 {
		t.Errorf("points that are not listed: %v", found)
	}
}

// constant returns the name of a point's constant.
func constant(name string) string {
	var b strings.Builder
	for part := range strings.SplitSeq(name, "-") {
		b.WriteString(strings.ToUpper(part[:1]) + part[1:])
	}
	return b.String()
}
