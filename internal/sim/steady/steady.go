// Package steady builds test programs that leave nothing to chance except the random
// numbers that a test draws itself. So a test does the same again each time it runs.
//
// Go chooses at random where a program should not rely on an order: which ready
// case a select takes, where the iteration of a map begins, which of the timers of
// one instant of a synctest bubble fires first. And Go uses the wall clock, even in a
// bubble: it takes the processor from a goroutine that has run for long, or that
// waits for the kernel, and it gives a mutex to a goroutine that has waited for a
// millisecond rather than to one that comes by. No setting turns those off. So this
// package replaces a handful of Go's own lines while a program is built (go build
// -overlay). It writes nothing to Go's own directory, and does not change the
// program's code.
//
// Then only the order of goroutines is left, and on one processor it is the same each
// time. So such a program must be run with Env, which gives it one processor and turns
// garbage collection off: a collection would come at other moments each time.
package steady

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/march-id/march/internal/overlay"
)

// Tag is the build tag for code that holds only in a steady program.
const Tag = "steady"

// goPatch has paths below the folder of Go's source.
//
//go:embed go.patch
var goPatch string

// Build builds the tests of a package as the program out, with further edits besides those that
// make it steady. It fails if this Go's runtime does not have the lines that the edits replace.
func Build(ctx context.Context, pkg, out string, more ...overlay.Edit) error {
	root, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output()
	if err != nil {
		return fmt.Errorf("go env: %w", err)
	}
	_, edits := overlay.Parse(goPatch)
	for i := range edits {
		edits[i].File = filepath.Join(strings.TrimSpace(string(root)), "src", edits[i].File)
	}
	return overlay.BuildTests(ctx, pkg, out, append(edits, more...), "-tags", Tag)
}

// Env returns the environment for a steady program: one processor from the beginning, no
// garbage collection except on request, and no preemption of goroutines.
func Env() []string {
	return append(os.Environ(), "GOMAXPROCS=1", "GOGC=off", "GODEBUG=asyncpreemptoff=1")
}
