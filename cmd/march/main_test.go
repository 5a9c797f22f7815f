package main

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// rewrite makes tests write the expected output instead of comparing it.
var rewrite = flag.Bool("rewrite", false, "write the golden files anew")

// TestMain makes this test program march itself when it is called so: the
// tests run real processes, under the race detector too.
func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) != "march" { // the tests
		for _, setting := range os.Environ() {
			if name, _, _ := strings.Cut(setting, "="); strings.HasPrefix(name, "MARCH_") {
				_ = os.Unsetenv(name)
			}
		}
		if os.Getenv("GORACE") == "" {
			_ = os.Setenv("GORACE", "atexit_sleep_ms=20") // not 1 s at the end of each process
		}
	}
	testscript.Main(m, map[string]func(){"march": main})
}
