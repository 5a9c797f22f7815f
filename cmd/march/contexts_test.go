package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/march-id/march/allocator"
)

func TestContextFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "new", "march", "contexts.json")
	f, err := loadContexts(path)
	if err != nil || len(f.Names()) > 0 || f.Current != "" {
		t.Fatalf("without a file: %+v, %v", f, err)
	}
	for _, name := range []string{"prod", "dev"} {
		if err := f.Add(name, map[string]string{"console": name + ":7001"}); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Add("dev", nil); allocator.KindOf(err) != allocator.Exists {
		t.Errorf("a second dev: %v", err)
	}
	if err := f.Use("prod"); err != nil {
		t.Fatal(err)
	}
	if err := f.Use("other"); allocator.KindOf(err) != allocator.NotFound ||
		!strings.Contains(err.Error(), "dev, prod") {
		t.Errorf("use of another: %v", err)
	}
	if err := f.Save(path); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	again, err := loadContexts(path)
	if err != nil || !cmp.Equal(f, again) {
		t.Errorf("read back: %v\n%s", err, cmp.Diff(f, again))
	}
	if err := again.Remove("prod"); err != nil || again.Current != "" || !slices.Equal(again.Names(), []string{"dev"}) {
		t.Errorf("after remove: %+v, %v", again, err)
	}
	if err := again.Save(path); err != nil {
		t.Fatal(err)
	}
	left, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(left) != 1 {
		t.Errorf("left beside the file: %v, %v", left, err)
	}
}

func TestContextFileRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "contexts.json")
	for content, want := range map[string]string{
		`{"contexts":{"Prod":{}}}`:            `"Prod"`,
		`{"contexts":{"prod":{"console":1}}}`: "not a file of contexts",
		`{"others":{}}`:                       "others",
		`{`:                                   "mend or remove it",
		strings.Repeat(" ", 1<<20+1):          "has more than 1048576 bytes",
	} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := loadContexts(path); allocator.KindOf(err) != allocator.Invalid ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%.40q: %v, want %q", content, err, want)
		}
	}
	if err := checkContextName(strings.Repeat("a", 64)); allocator.KindOf(err) != allocator.Invalid {
		t.Errorf("a name of 64: %v", err)
	}
}
