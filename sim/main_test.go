package sim_test

import (
	"flag"
	"testing"

	"go.uber.org/goleak"
)

var (
	oneSeed  = flag.Int64("seed", -1, "run this seed alone, and with -v print its schedule")
	allSeeds = flag.Int("seeds", 0, "how many seeds to run; 0 is 1,000, or 100 with -short")
	logs     = flag.Bool("logs", false, "with -seed and -v, print what the processes log, too")
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
