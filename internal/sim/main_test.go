package sim_test

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"testing"

	"go.uber.org/goleak"
)

var (
	oneSeed  = flag.Int64("seed", -1, "run this seed alone, and with -v print its schedule")
	allSeeds = flag.Int("seeds", 0,
		"how many seeds to run; 0 is 6, 20 with LIVE=1, or 4 under the race detector; make simulate runs 1,000")
	with = flag.String("with", "",
		"a fault (of a transaction, or another) that every seed has: one by which something is found sooner")
	logs   = flag.Bool("logs", false, "with -seed and -v, print what the processes log, too")
	first  = flag.Int("first", -1, "run the seeds from this on, as many as -batch says: what TestSimulation starts")
	batch  = flag.Int("batch", 3, "how many seeds one process runs")
	counts = flag.String("counts", "", "with -first, the file to write what was met to")
)

// Use one processor: only then does the seed decide the order of goroutines.
func TestMain(m *testing.M) {
	flag.Parse()
	if err := knownFault(*with); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	runtime.GOMAXPROCS(1)
	if !steady { // a steady program collects only on request
		debug.SetGCPercent(800) // a run needs little memory and much time
	}
	goleak.VerifyTestMain(m)
}
