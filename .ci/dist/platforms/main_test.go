package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A package that does not compile for one platform is found for that platform alone, wherever
// in the program it is, and inside a function.
func TestCheck(t *testing.T) {
	dir := t.TempDir()
	for name, content := range map[string]string{
		"go.mod":              "module example.test\n\ngo 1.26\n",
		"main.go":             "package main\n\nimport \"example.test/deep\"\n\nfunc main() { deep.Do() }\n",
		"deep/deep.go":        "package deep\n\nfunc Do() { do() }\n",
		"deep/do_linux.go":    "package deep\n\nfunc do() {}\n",
		"deep/do_windows.go":  "package deep\n\nfunc do() { var s string = 1; _ = s }\n",
		"deep/do_darwin.go":   "package deep\n\nfunc other() {}\n",
		"deep/deep_test.go":   "package deep\n\nvar wrong int = \"\"\n",
		"unused/not_there.go": "package unused\n\nvar x int = \"\"\n",
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for platform, want := range map[string]string{
		"linux/arm64": "", "windows/amd64": "do_windows.go:3", "darwin/arm64": "undefined: do",
		"linux": "allowed: GOOS/GOARCH", "no/such": "no",
	} {
		n, err := check(dir, ".", platform, "")
		if want == "" {
			if err != nil || n < 2 {
				t.Errorf("%s: %d packages, %v", platform, n, err)
			}
		} else if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", platform, err, want)
		}
	}
	if n, err := check(dir, "./deep", "linux/arm64", ""); err != nil {
		t.Errorf("a package without its tests: %d packages, %v", n, err)
	}
	_, err := check(dir, "./deep", "linux/arm64", "live")
	if err == nil || !strings.Contains(err.Error(), "deep_test.go:3") {
		t.Errorf("a package with its tests: %v, want deep_test.go:3", err)
	}
}
