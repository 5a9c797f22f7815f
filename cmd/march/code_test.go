package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// codeNames are the ways in which docs/code.md says that a file declares names: "`A` and `B` in
// x.go", "`A` (x.go)", and "[x.go](../path/x.go): `A`".
var codeNames = []*regexp.Regexp{
	regexp.MustCompile("(?P<names>(?:`[A-Za-z.]+`(?:, | and )?)+),? (?:in |\\()\\[?`?(?P<file>[\\w/.]+\\.go)"),
	regexp.MustCompile("\\(\\.\\./(?P<file>[\\w/.]+\\.go)\\): (?P<names>`[A-Za-z.]+`)"),
}

// TestCodeNames: a name that docs/code.md says to be in a file is declared there.
func TestCodeNames(t *testing.T) {
	t.Parallel()
	page := regexp.MustCompile(`\n +`).ReplaceAllString(readDocument(t, "docs/code.md"), " ")
	var files []string
	if err := filepath.WalkDir("../..", func(path string, _ fs.DirEntry, err error) error {
		if strings.HasSuffix(path, ".go") {
			files = append(files, path)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, pattern := range codeNames {
		for _, m := range pattern.FindAllStringSubmatch(page, -1) {
			file := m[pattern.SubexpIndex("file")]
			for _, name := range regexp.MustCompile("`([A-Za-z.]+)`").FindAllStringSubmatch(
				m[pattern.SubexpIndex("names")], -1) {
				found++
				if !declares(t, files, file, name[1]) {
					t.Errorf("docs/code.md: %s does not declare %s", file, name[1])
				}
			}
		}
	}
	if found < 30 {
		t.Errorf("%d names found", found)
	}
}

// declares reports whether a file, which a path or only its end names, declares a function, a
// type or a variable.
func declares(t *testing.T, files []string, file, name string) bool {
	t.Helper()
	method := name[strings.LastIndex(name, ".")+1:]
	declaration := regexp.MustCompile(`(?m)^(func (\([^)]*\) )?|type |var |const |\t)` + method + `\b`)
	for _, path := range files {
		if strings.HasSuffix(path, "/"+file) {
			content, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if declaration.Match(content) {
				return true
			}
		}
	}
	return false
}
