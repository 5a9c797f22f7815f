// Package overlay changes source code while it is built (go build -overlay). The files
// on the disk stay as they are.
package overlay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Edit replaces a text of a file by another one. Edits of one file are made in their
// order.
type Edit struct {
	File string // its path
	From string // must be there once; empty for a file that is not there yet
	To   string
}

// Write writes the files that edits change to a directory, and returns the file to
// give to go build -overlay. Its error names an edit with a From that is not there once.
func Write(dir string, edits []Edit) (file string, err error) {
	texts := make(map[string]string)
	for _, e := range edits {
		path, err := filepath.Abs(e.File)
		if err != nil {
			return "", err
		}
		if e.From == "" {
			texts[path] = e.To
			continue
		}
		if _, read := texts[path]; !read {
			text, err := os.ReadFile(path) //nolint:gosec // the caller's own
			if err != nil {
				return "", err
			}
			texts[path] = string(text)
		}
		if n := strings.Count(texts[path], e.From); n != 1 {
			return "", fmt.Errorf("%s: %q is there %d times, want once: change the edit as the source did",
				e.File, e.From, n)
		}
		texts[path] = strings.Replace(texts[path], e.From, e.To, 1)
	}
	replaced := make(map[string]string, len(texts))
	for path, text := range texts {
		replaced[path] = filepath.Join(dir, fmt.Sprintf("%d_%s", len(replaced), filepath.Base(path)))
		err = errors.Join(err, os.WriteFile(replaced[path], []byte(text), 0o600))
	}
	overlay, marshalErr := json.Marshal(map[string]any{"Replace": replaced})
	file = filepath.Join(dir, "overlay.json")
	return file, errors.Join(err, marshalErr, os.WriteFile(file, overlay, 0o600))
}

// BuildTests builds the tests of a package as the program out, with edits, and with
// more arguments of go test.
func BuildTests(ctx context.Context, pkg, out string, edits []Edit, args ...string) error {
	dir, err := os.MkdirTemp("", "march-overlay-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	file, err := Write(dir, edits)
	if err != nil {
		return err
	}
	args = append([]string{"test", "-c", "-overlay", file, "-o", out}, append(args, pkg)...)
	if said, err := exec.CommandContext(ctx, "go", args...).CombinedOutput(); err != nil { //nolint:gosec // the caller's own package
		return fmt.Errorf("build %s: %w: %s", pkg, err, said)
	}
	return nil
}
