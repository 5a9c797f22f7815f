package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/api"
)

const layouts = "../../testdata/layouts"

// TestLayouts runs `march layout validate` on the layouts of the top-level testdata. NAME.txt
// is the expected output, stdout and stderr.
func TestLayouts(t *testing.T) {
	for kind, want := range map[string]int{"good": exitOK, "bad": exitFailed} {
		files, err := filepath.Glob(filepath.Join(layouts, kind, "*.json"))
		if err != nil || len(files) == 0 {
			t.Fatalf("no layouts of kind %s: %v", kind, err)
		}
		for _, file := range files {
			t.Run(kind+"/"+strings.TrimSuffix(filepath.Base(file), ".json"), func(t *testing.T) {
				t.Parallel()
				stdout, stderr, code := march(t, "layout", "validate", file)
				if code != want {
					t.Errorf("exit code %d, want %d", code, want)
				}
				golden(t, strings.TrimSuffix(file, ".json")+".txt",
					strings.ReplaceAll(stdout+stderr, file, filepath.Base(file)))
			})
		}
	}
}

// golden compares got with a file, or writes it with -rewrite.
func golden(t *testing.T, file, got string) {
	t.Helper()
	if rewriting() {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatalf("%v; write it with -rewrite", err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got; -rewrite writes it anew):\n%s", file, diff)
	}
}

// FuzzLayout: a layout file of any content is refused with one clear line, or it is a layout
// that keeps every number on its way through JSON.
func FuzzLayout(f *testing.F) {
	for _, kind := range []string{"good", "bad"} {
		files, _ := filepath.Glob(filepath.Join(layouts, kind, "*.json"))
		for _, file := range files {
			content, err := os.ReadFile(file)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(content)
		}
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		message, err := parseLayout("f", content)
		if err != nil {
			oneLine(t, err)
			return
		}
		layout, err := api.LayoutFromProto(message)
		var invalid *allocator.LayoutError
		if errors.As(err, &invalid) {
			for _, problem := range invalid.Problems {
				oneLine(t, allocator.Errorf(allocator.Invalid, "%s", excerpt(problem)))
			}
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		written, err := protojson.Marshal(api.LayoutToProto(layout))
		if err != nil {
			t.Fatal(err)
		}
		again, err := parseLayout("f", written)
		if err != nil {
			t.Fatalf("%s: %v", written, err)
		}
		if !proto.Equal(message, again) {
			t.Errorf("%s became %s", content, written)
		}
	})
}

// oneLine checks an error about outside input.
func oneLine(t *testing.T, err error) {
	t.Helper()
	if allocator.KindOf(err) != allocator.Invalid {
		t.Errorf("kind %v, want invalid: %v", allocator.KindOf(err), err)
	}
	if msg := err.Error(); msg == "" || strings.ContainsAny(msg, "\n\x00") || len(msg) > 10_000 {
		t.Errorf("not one clear line (%d bytes): %.200q", len(msg), msg)
	}
}
