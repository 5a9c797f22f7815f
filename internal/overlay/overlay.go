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
	From string // must be there once; empty for the whole file, which need not be there yet
	To   string
}

// Parse reads a patch: for each file "--- " and its path, and hunks of whole lines, each below a line that
// begins with "@@" and may say more. As there are no numbers of lines, the lines of a hunk must be in the
// file once, and stay right when other lines come and go. What stands before the first file is the head.
func Parse(patch string) (head string, edits []Edit) {
	file, from, to := "", "", ""
	flush := func() {
		if from != to {
			edits = append(edits, Edit{file, "\n" + from, "\n" + to})
		}
		from, to = "", ""
	}
	for line := range strings.Lines(patch) {
		path, isFile := strings.CutPrefix(line, "--- ")
		switch {
		case isFile:
			flush()
			file = strings.TrimSpace(path)
		case file == "":
			head += line
		case strings.HasPrefix(line, "@@"):
			flush()
		case line[0] == '-':
			from += line[1:]
		case line[0] == '+':
			to += line[1:]
		default:
			from, to = from+line[1:], to+line[1:]
		}
	}
	flush()
	return head, edits
}

// Apply returns the files that edits change, by their absolute paths. Its error names an edit with a From
// that is not there once.
func Apply(edits []Edit) (map[string]string, error) {
	texts := make(map[string]string)
	for _, e := range edits {
		path, err := filepath.Abs(e.File)
		if err != nil {
			return nil, err
		}
		if e.From == "" {
			texts[path] = e.To
			continue
		}
		if _, read := texts[path]; !read {
			text, err := os.ReadFile(path) //nolint:gosec // the caller's own
			if err != nil {
				return nil, err
			}
			texts[path] = string(text)
		}
		if n := strings.Count(texts[path], e.From); n != 1 {
			return nil, fmt.Errorf("%s: %q is there %d times, want once: change the edit as the source did",
				e.File, e.From, n)
		}
		texts[path] = strings.Replace(texts[path], e.From, e.To, 1)
	}
	return texts, nil
}

// Write writes the files that edits change to a directory, and returns the file to
// give to go build -overlay.
func Write(dir string, edits []Edit) (file string, err error) {
	texts, err := Apply(edits)
	if err != nil {
		return "", err
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
