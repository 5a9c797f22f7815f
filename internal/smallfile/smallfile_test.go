package smallfile

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/march-id/march/allocator"
)

// TestRead: a file is read up to its bound, and an error names the setting.
func TestRead(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte("12345"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := Read("tokens", path, 5); string(got) != "12345" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	for path, most := range map[string]int64{path: 4, path + ".none": 5, filepath.Dir(path): 5} {
		if _, err := Read("tokens", path, most); allocator.KindOf(err) != allocator.Invalid ||
			!strings.HasPrefix(err.Error(), "tokens: ") || !strings.Contains(err.Error(), path) {
			t.Errorf("%s of %d bytes: %v", path, most, err)
		}
	}
}

// TestExposed: a secret is its owner's, and perhaps its group's to read.
func TestExposed(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "secret")
	if why := Exposed(path); why != "" {
		t.Errorf("no file: %s", why)
	}
	if err := os.WriteFile(path, []byte("12345"), 0o600); err != nil {
		t.Fatal(err)
	}
	for mode, want := range map[os.FileMode]bool{0o600: false, 0o400: false, 0o640: false, 0o660: true, 0o644: true,
		0o602: true} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		if why := Exposed(path); why != "" != (want && runtime.GOOS != "windows") {
			t.Errorf("%04o: %q", mode, why)
		}
	}
}
