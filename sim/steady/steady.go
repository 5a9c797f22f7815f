// Package steady builds test programs in which nothing is left to chance but what
// a test draws itself, so that what a test did it does again.
//
// Go chooses at random where a program should not rely on an order: which ready
// case a select takes, where the iteration of a map begins, which of the timers of
// one instant of a synctest bubble fires first. And it goes by the clock on the
// wall, a bubble's clock or not: it takes the processor from a goroutine that has
// it for long, or waits for the kernel, and gives a mutex to who waited for it for
// a millisecond rather than to who comes by. No setting turns those off. Here a
// handful of lines of Go are replaced while a program is built (go build
// -overlay): nothing is written to Go's own directory, and the program's code is
// what it is otherwise.
//
// What is left is order, and of one processor it is the same each time. So such a
// program must be run with Env, which gives it one, and has no garbage collected:
// a collection would come at other moments each time.
package steady

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

// Tag is the build tag of what is only true of a steady program.
const Tag = "steady"

// patch replaces one line, or a part of it, of the runtime.
type patch struct{ file, from, to string }

// patches are for Go 1.26. Each says what it takes away.
func patches() []patch {
	return []patch{
		// The order of timers of one instant: that in which they were made. Not that in
		// which they were added, as a select adds those of its channels by their
		// addresses.
		{"runtime/synctest.go", "type synctestBubble struct {\n", "type synctestBubble struct {\n\tmade uint32\n\tdrawn uint64\n"},
		{"runtime/time.go", "gp.bubble != nil {\n\t\t\tt.isFake = true\n", "bubble := gp.bubble; bubble != nil {\n\t\t\tbubble.made++\n\t\t\tt.isFake, t.rand = true, bubble.made\n"},
		{"runtime/time.go", "bubble != nil {\n\t\tt.isFake = true\n", "bubble != nil {\n\t\tbubble.made++\n\t\tt.isFake, t.rand = true, bubble.made\n"},
		{"runtime/time.go", "t.rand = cheaprand()", ""},
		// The order in which a select looks at its cases.
		{"runtime/select.go", "cheaprandn(uint32(norder + 1))", "uint32(0)"},
		// Where the iteration of a map begins, and how its keys are hashed.
		{"runtime/rand.go", "func maps_rand() uint64 {\n", "func maps_rand() uint64 {\n\tif true {\n\t\treturn 1\n\t}\n"},
		// What the compiler draws for a map on a stack, and math/rand for whoever did
		// not seed it: by thread, and which thread that is, is chance. In a bubble it is
		// a sequence that begins anew with each (Steele and others, SplitMix64).
		{"runtime/rand.go", "func rand() uint64 {\n", "func rand() uint64 {\n" +
			"\tif gp := getg(); gp.bubble != nil {\n" +
			"\t\tgp.bubble.drawn += 0x9e3779b97f4a7c15\n" +
			"\t\tz := gp.bubble.drawn\n" +
			"\t\tz = (z ^ z>>30) * 0xbf58476d1ce4e5b9\n" +
			"\t\tz = (z ^ z>>27) * 0x94d049bb133111eb\n" +
			"\t\treturn z ^ z>>31\n\t}\n"},
		{"runtime/rand.go", "globalRand.state.Init(*seed)", "*seed = [32]byte{1}\n\tglobalRand.state.Init(*seed)"},
		// Whom a mutex is given to. So who always comes back for one without a pause
		// keeps it: a simulation that hangs, and should not, may be of that.
		{"internal/sync/mutex.go", "starvationThresholdNs = 1e6", "starvationThresholdNs = 1 << 62"},
		// How many goroutines, of whatever kind, ran before one of the queue of all
		// processors has its turn.
		{"runtime/proc.go", "if pp.schedtick%61 == 0 &&", "if gomaxprocs > 1 && pp.schedtick%61 == 0 &&"},
		// The monitor that takes a processor away, where there is but one.
		{"runtime/proc.go", "func retake(now int64) uint32 {\n", "func retake(now int64) uint32 {\n\tif gomaxprocs == 1 {\n\t\treturn 0\n\t}\n"},
		// The order in which the children of a context end: they are in a map by their
		// addresses.
		{"context/context.go", "children map[canceler]struct{}", "children []canceler"},
		{"context/context.go", "delete(p.children, child)", "for i, c := range p.children {\n\t\t\tif c == child {\n\t\t\t\tp.children = append(p.children[:i:i], p.children[i+1:]...)\n\t\t\t\tbreak\n\t\t\t}\n\t\t}"},
		{"context/context.go", "p.children = make(map[canceler]struct{})", "p.children = nil"},
		{"context/context.go", "p.children[child] = struct{}{}", "p.children = append(p.children, child)"},
		{"context/context.go", "for child := range c.children {", "for _, child := range c.children {"},
	}
}

// Overlay writes what is replaced to dir and returns the file to give to go build
// -overlay. It fails where this Go's runtime has not the lines that it knows.
func Overlay(ctx context.Context, dir string) (file string, err error) {
	out, err := exec.CommandContext(ctx, "go", "env", "GOROOT", "GOVERSION").Output()
	if err != nil {
		return "", fmt.Errorf("go env: %w", err)
	}
	root, version, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	texts := make(map[string]string)
	for _, p := range patches() {
		path := filepath.Join(root, "src", p.file)
		if texts[path] == "" {
			text, err := os.ReadFile(path) //nolint:gosec // Go's own
			if err != nil {
				return "", err
			}
			texts[path] = string(text)
		}
		if n := strings.Count(texts[path], p.from); n != 1 {
			return "", fmt.Errorf("%s, %s: %q is there %d times; package steady knows the runtime of Go 1.26", version, path, p.from, n)
		}
		texts[path] = strings.Replace(texts[path], p.from, p.to, 1)
	}
	replaced := make(map[string]string)
	for path, text := range texts {
		replaced[path] = filepath.Join(dir, filepath.Base(filepath.Dir(path))+"_"+filepath.Base(path))
		err = errors.Join(err, os.WriteFile(replaced[path], []byte(text), 0o600))
	}
	overlay, marshalErr := json.Marshal(map[string]any{"Replace": replaced})
	file = filepath.Join(dir, "overlay.json")
	return file, errors.Join(err, marshalErr, os.WriteFile(file, overlay, 0o600))
}

// Build builds the tests of a package as the program out, with build tags of its
// own besides Tag.
func Build(ctx context.Context, pkg, out string, tags ...string) error {
	dir, err := os.MkdirTemp("", "march-steady-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	overlay, err := Overlay(ctx, dir)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "go", "test", "-c", "-overlay", overlay, "-tags", strings.Join(append(tags, Tag), ","), "-o", out, pkg) //nolint:gosec // the caller's own package
	if said, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w: %s", pkg, err, said)
	}
	return nil
}

// Env returns the environment that a steady program is to run in: one processor
// from its beginning, no collection of garbage but those it asks for, and nobody
// interrupts.
func Env() []string {
	return append(os.Environ(), "GOMAXPROCS=1", "GOGC=off", "GODEBUG=asyncpreemptoff=1")
}
