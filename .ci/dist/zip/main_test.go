package main

import (
	"archive/zip"
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// The same tree makes the same bytes, with the names, times and modes of its files.
func TestWrite(t *testing.T) {
	t.Setenv("TZ", "UTC")
	at := time.Unix(1_700_000_000, 0).UTC()
	var archives [2][]byte
	for i, order := range [][]string{{"march/march.exe", "march/man/march.1.gz"},
		{"march/man/march.1.gz", "march/march.exe"}} {
		tree := t.TempDir()
		for _, name := range order {
			path := filepath.Join(tree, name)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte("content of "+name), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		err := filepath.WalkDir(tree, func(path string, _ fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			return os.Chtimes(path, at, at)
		})
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(t.TempDir(), "march.zip")
		if err := write(tree, file); err != nil {
			t.Fatal(err)
		}
		if archives[i], err = os.ReadFile(file); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(archives[0], archives[1]) {
		t.Error("the same tree, written in another order, makes other bytes")
	}

	r, err := zip.NewReader(bytes.NewReader(archives[0]), int64(len(archives[0])))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"march/march.exe", "march/man/march.1.gz"} {
		content, err := fs.ReadFile(r, name)
		if err != nil || string(content) != "content of "+name {
			t.Errorf("%s: %q, %v", name, content, err)
		}
		info, err := fs.Stat(r, name)
		if err != nil || !info.ModTime().Equal(at) || info.Mode().Perm() != 0o644 {
			t.Errorf("%s: %v, %v, %v; want %v, -rw-r--r--", name, info.ModTime(), info.Mode(), err, at)
		}
	}
}
