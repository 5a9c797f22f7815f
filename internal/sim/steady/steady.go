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
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/march-id/march/internal/overlay"
)

// Tag is the build tag for code that holds only in a steady program.
const Tag = "steady"

// patch replaces one text of a file of Go's source.
type patch struct{ file, from, to string }

// patches are for Go 1.26. Each comment names what the patch removes.
func patches() []patch {
	return []patch{
		// The order of timers of one instant becomes the order in which they were made. It is
		// not the order in which they were added: a select adds the timers of its channels by
		// their addresses.
		{"runtime/synctest.go", "type synctestBubble struct {\n",
			"type synctestBubble struct {\n\tmade uint32\n\tdrawn uint64\n"},
		{"runtime/time.go", "gp.bubble != nil {\n\t\t\tt.isFake = true\n",
			"bubble := gp.bubble; bubble != nil {\n\t\t\tbubble.made++\n\t\t\tt.isFake, t.rand = true, bubble.made\n"},
		{"runtime/time.go", "bubble != nil {\n\t\tt.isFake = true\n",
			"bubble != nil {\n\t\tbubble.made++\n\t\tt.isFake, t.rand = true, bubble.made\n"},
		{"runtime/time.go", "t.rand = cheaprand()", ""},
		// The order in which a select examines its cases.
		{"runtime/select.go", "cheaprandn(uint32(norder + 1))", "uint32(0)"},
		// The start of an iteration over a map, and the hash of its keys.
		{"runtime/rand.go", "func maps_rand() uint64 {\n",
			"func maps_rand() uint64 {\n\tif true {\n\t\treturn 1\n\t}\n"},
		// The random numbers that the compiler draws for a map on a stack, and those of
		// math/rand without a seed. Each thread draws its own, and which thread runs is chance.
		// In a bubble they become a sequence that begins anew with each bubble (Steele and
		// others, SplitMix64).
		{"runtime/rand.go", "func rand() uint64 {\n", "func rand() uint64 {\n" +
			"\tif gp := getg(); gp.bubble != nil {\n" +
			"\t\tgp.bubble.drawn += 0x9e3779b97f4a7c15\n" +
			"\t\tz := gp.bubble.drawn\n" +
			"\t\tz = (z ^ z>>30) * 0xbf58476d1ce4e5b9\n" +
			"\t\tz = (z ^ z>>27) * 0x94d049bb133111eb\n" +
			"\t\treturn z ^ z>>31\n\t}\n"},
		{"runtime/rand.go", "globalRand.state.Init(*seed)", "*seed = [32]byte{1}\n\tglobalRand.state.Init(*seed)"},
		// Which goroutine gets a mutex. With this patch a goroutine that comes back for a mutex
		// without a pause keeps it: a simulation may hang because of that.
		{"internal/sync/mutex.go", "starvationThresholdNs = 1e6", "starvationThresholdNs = 1 << 62"},
		// How many goroutines run before one of the queue of all processors has its turn.
		{"runtime/proc.go", "if pp.schedtick%61 == 0 &&", "if gomaxprocs > 1 && pp.schedtick%61 == 0 &&"},
		// The monitor that takes the processor away, when there is only one.
		{"runtime/proc.go", "func retake(now int64) uint32 {\n",
			"func retake(now int64) uint32 {\n\tif gomaxprocs == 1 {\n\t\treturn 0\n\t}\n"},
		// The order in which the children of a context end: they are in a map by their
		// addresses.
		{"context/context.go", "children map[canceler]struct{}", "children []canceler"},
		{"context/context.go", "delete(p.children, child)", "for i, c := range p.children {\n\t\t\tif c == child " +
			"{\n\t\t\t\tp.children = append(p.children[:i:i], p.children[i+1:]...)\n\t\t\t\tbreak\n\t\t\t}\n\t\t}"},
		{"context/context.go", "p.children = make(map[canceler]struct{})", "p.children = nil"},
		{"context/context.go", "p.children[child] = struct{}{}", "p.children = append(p.children, child)"},
		{"context/context.go", "for child := range c.children {", "for _, child := range c.children {"},
	}
}

// edits returns the edits of Go's source. Its error says that the go command did not tell where
// that is.
func edits(ctx context.Context) ([]overlay.Edit, error) {
	root, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output()
	if err != nil {
		return nil, fmt.Errorf("go env: %w", err)
	}
	var all []overlay.Edit
	for _, p := range patches() {
		all = append(all, overlay.Edit{File: filepath.Join(strings.TrimSpace(string(root)), "src", p.file),
			From: p.from, To: p.to})
	}
	return all, nil
}

// Build builds the tests of a package as the program out, with further edits besides those that
// make it steady. It fails if this Go's runtime does not have the lines that the edits replace.
func Build(ctx context.Context, pkg, out string, more ...overlay.Edit) error {
	all, err := edits(ctx)
	if err != nil {
		return err
	}
	return overlay.BuildTests(ctx, pkg, out, append(all, more...), "-tags", Tag)
}

// Env returns the environment for a steady program: one processor from the beginning, no
// garbage collection except on request, and no preemption of goroutines.
func Env() []string {
	return append(os.Environ(), "GOMAXPROCS=1", "GOGC=off", "GODEBUG=asyncpreemptoff=1")
}
