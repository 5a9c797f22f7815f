package overlay_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/march-id/march/internal/overlay"
)

// A program is built from the edited code, and the files stay unchanged.
func TestWrite(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "main.go")
	source := "package main\n\nfunc main() { print(\"one\") }\n"
	write(t, path, source)
	file, err := overlay.Write(t.TempDir(), []overlay.Edit{
		{File: path, From: `"one"`, To: `"two"`},
		{File: path, From: `"two"`, To: `three`},
		{File: filepath.Join(dir, "three.go"), To: "package main\n\nconst three = \"three\"\n"},
	})
	if err != nil {
		t.Fatal(err)
	}
	run := exec.CommandContext(t.Context(), "go", "run", "-overlay", file, path, filepath.Join(dir, "three.go")) //nolint:gosec // just written
	if out, err := run.CombinedOutput(); err != nil || string(out) != "three" {
		t.Errorf("said %q, %v", out, err)
	}
	if now, err := os.ReadFile(path); err != nil || string(now) != source { //nolint:gosec // just written
		t.Errorf("the code is %q, %v", now, err)
	}
}

// The error names the file of an edit that no longer fits the code.
func TestWriteRefuses(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.go")
	write(t, path, "package a // a\n")
	for _, from := range []string{"b", "a"} {
		if _, err := overlay.Write(t.TempDir(), []overlay.Edit{{File: path, From: from, To: "c"}}); err == nil ||
			!strings.Contains(err.Error(), "a.go") {
			t.Errorf("%q: %v", from, err)
		}
	}
	if _, err := overlay.Write(t.TempDir(), []overlay.Edit{{File: path + ".none", From: "a", To: "b"}}); err == nil {
		t.Error("a missing file was changed")
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
