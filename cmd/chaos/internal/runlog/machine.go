package runlog

import (
	"path/filepath"
	"time"

	"github.com/march-id/march/allocator"
)

// machines begins the names of the files of machine IDs.
const machines = "machines-"

// Holding is the time in which a client of CosId had a machine ID.
type Holding struct {
	Client   string             `json:"client"`
	Instance allocator.Instance `json:"instance"` // that gave it
	Number   int64              `json:"number"`
	// From is when its answer came, Until when the client gave it back, heard that it has it no longer, or ended.
	From  time.Time `json:"from"`
	Until time.Time `json:"until"`
}

// CreateHoldings makes the file of a client's machine IDs in the run's directory. It must not exist.
func CreateHoldings(dir, client string) (*Writer, error) {
	return create(dir, machines+client+".jsonl")
}

// ReadHoldings reads the machine IDs of all clients of the run in dir.
func ReadHoldings(dir string) (all []Holding, err error) {
	paths, err := filepath.Glob(filepath.Join(dir, Dir, machines+"*"))
	for _, path := range paths {
		if _, err := Read(path, func(h Holding) error { all = append(all, h); return nil }); err != nil {
			return nil, err
		}
	}
	return all, err
}
