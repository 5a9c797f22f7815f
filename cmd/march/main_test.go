package main

import (
	"flag"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// rewrite makes tests write the expected output instead of comparing it.
var rewrite = flag.Bool("rewrite", false, "write the golden files anew")

// TestMain makes this test program march itself when it is called so: the
// tests run real processes, under the race detector too.
func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"march": main})
}
