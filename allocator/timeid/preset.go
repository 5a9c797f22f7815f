package timeid

import (
	"strings"
	"time"

	"github.com/march-id/march/allocator"
)

// Preset is a layout that other systems' clients and decoders know, with that system's way to
// count within a tick.
type Preset struct {
	Name     string
	Layout   Layout
	Sequence Sequence
	Note     string // one line: the system
}

// Epochs of the presets, in Unix ms.
const (
	// EpochTwitter is 2010-11-04T01:42:54.657Z: Twitter's, and Leaf's
	// (SnowflakeIDGenImpl.java).
	EpochTwitter = 1288834974657
	// EpochCosId is 2019-12-24T16:00:00Z (CosId.java).
	EpochCosId = 1577203200000
	// EpochUID is 2016-05-19T16:00:00Z (DefaultUidGenerator.java of uid-generator).
	EpochUID = 1463673600000
)

// presets are in the order in which PresetNames returns their names.
var presets = []Preset{
	{"leaf", Layout{41, 10, 12, time.Millisecond, EpochTwitter, WorkerMiddle}, Random,
		"Leaf's snowflake; Twitter's epoch"},
	{"cosid", Layout{41, 10, 12, time.Millisecond, EpochCosId, WorkerMiddle}, Carry, "CosId's MillisecondSnowflakeId"},
	{"cosid-second", Layout{31, 10, 22, time.Second, EpochCosId, WorkerMiddle}, Carry, "CosId's SecondSnowflakeId"},
	{"cosid-js", Layout{41, 3, 9, time.Millisecond, EpochCosId, WorkerMiddle}, Carry,
		"CosId's SafeJavaScriptSnowflakeId: below 2^53"},
	{"cosid-js-second", Layout{31, 3, 19, time.Second, EpochCosId, WorkerMiddle}, Carry, "the same in seconds"},
	{"uid-generator", Layout{28, 22, 13, time.Second, EpochUID, WorkerMiddle}, Reset,
		"uid-generator's default; its time ended in 2024: new IDs need a newer epoch"},
	{"cosid-string", Wide, Carry, "CosId's CosIdGenerator: 80 bits, which exist only as texts"},
}

// PresetNames returns the names of all presets.
func PresetNames() []string {
	names := make([]string, len(presets))
	for i, p := range presets {
		names[i] = p.Name
	}
	return names
}

// PresetNamed returns the preset of a name. Its error is Invalid and lists the names.
func PresetNamed(name string) (Preset, error) {
	for _, p := range presets {
		if p.Name == name {
			return p, nil
		}
	}
	return Preset{}, allocator.Errorf(allocator.Invalid, "preset: %q; allowed: %s", short(name),
		strings.Join(PresetNames(), ", "))
}
