//go:build chaos

package crash

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
)

// On is whether this program has points to die at.
const On = true

// variable names the point to die at.
const variable = "MARCH_CRASH"

// order is where to die, as the environment says: one for the whole process,
// as its death is.
var order = sync.OnceValue(func() *countdown {
	d, err := parse(os.Getenv(variable))
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", variable, err)
		os.Exit(2)
	}
	return d
})

// countdown counts the passings of one point.
type countdown struct {
	name string // empty: none
	left atomic.Int64
}

// parse reads NAME:N.
func parse(text string) (*countdown, error) {
	d := &countdown{}
	if text == "" {
		return d, nil
	}
	name, count, _ := strings.Cut(text, ":")
	n, err := strconv.ParseInt(count, 10, 64)
	known := slices.ContainsFunc(Points(), func(p Point) bool { return p.Name == name })
	if err != nil || n < 1 || !known {
		return nil, fmt.Errorf("%q; allowed: NAME:N, N 1 or more, NAME one of %v", text, Points())
	}
	d.name = name
	d.left.Store(n)
	return d, nil
}

// due counts a passing, and reports whether it is the one to die at.
func (d *countdown) due(name string) bool {
	return d.name == name && d.left.Add(-1) == 0
}

// Here is the point with a name. Where it is the one to die at, Here does not
// return.
func Here(name string) {
	if !order().due(name) {
		return
	}
	fmt.Fprintf(os.Stderr, "crash point %s\n", name)
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {} // until the signal is there
}
