// Package smallfile reads the files that operators name in settings, of bounded size, looks at the modes of those
// with secrets, and replaces files. Packages of the client, which import nothing of internal, read their few files
// themselves.
package smallfile

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"

	"github.com/march-id/march/allocator"
)

// Read returns the content of a file of up to most bytes. Its error is Invalid, and begins with the name of the setting
// that names the file.
func Read(setting, path string, most int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, allocator.Errorf(allocator.Invalid, "%s: %w", setting, err)
	}
	defer func() { _ = f.Close() }() // it was only read
	return ReadAll(setting, path, f, most)
}

// ReadAll is Read of a file that is open.
func ReadAll(setting, path string, f io.Reader, most int64) ([]byte, error) {
	content, err := io.ReadAll(io.LimitReader(f, most+1))
	switch {
	case err != nil:
		return nil, allocator.Errorf(allocator.Invalid, "%s: %w", setting, err)
	case int64(len(content)) > most:
		return nil, allocator.Errorf(allocator.Invalid, "%s: %s has more than %d bytes", setting, path, most)
	}
	return content, nil
}

// Replace writes a file that only its owner may read. A reader sees what was there before, or all that is written.
func Replace(path string, content []byte) (err error) {
	next, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*") // its mode is 0600
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_, _ = next.Close(), os.Remove(next.Name())
		}
	}()
	if _, err := next.Write(content); err != nil {
		return err
	}
	if err := errors.Join(next.Sync(), next.Close()); err != nil {
		return err
	}
	return os.Rename(next.Name(), path)
}

// Exposed returns why others may read or change a file with a secret; empty if they may not, or if that is not known.
// A group may read it, as it does where Kubernetes mounts a secret.
func Exposed(path string) string {
	info, err := os.Stat(path)
	if err != nil || runtime.GOOS == "windows" || info.Mode().Perm()&0o027 == 0 {
		return ""
	}
	return fmt.Sprintf("%s has the mode %04o, so others may read or change the secret; allowed: 0600 or 0640, say: "+
		"chmod 600 %s", path, info.Mode().Perm(), path)
}
