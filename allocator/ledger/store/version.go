package store

import (
	"fmt"
	"strings"

	"github.com/march-id/march/allocator"
)

// supported lists the etcd servers that March runs on: for each minor version the least patch.
// Versions of 3.6 before 3.6.9 at times answered linearizable reads from the past (fixed there
// and in 3.7).
var supported = []struct{ major, minor, patch int }{{3, 6, 9}, {3, 7, 0}}

// supportedVersions is the same list in words.
const supportedVersions = "3.6.9 or newer"

// CheckVersion checks an etcd server's version. Its error is Refused and names
// both versions.
func CheckVersion(version string) error {
	var major, minor, patch int
	core, _, _ := strings.Cut(version, "+") // the name of a build may follow; a pre-release is not the release
	if _, err := fmt.Sscanf(core, "%d.%d.%d", &major, &minor, &patch); err != nil ||
		core != fmt.Sprintf("%d.%d.%d", major, minor, patch) {
		return allocator.Errorf(allocator.Refused,
			"etcd says its version is %q; supported: %s", version, supportedVersions)
	}
	newest := supported[len(supported)-1]
	if major == newest.major && minor > newest.minor {
		return nil
	}
	for _, s := range supported {
		if major == s.major && minor == s.minor && patch >= s.patch {
			return nil
		}
	}
	return allocator.Errorf(allocator.Refused, "etcd %s is not supported; supported: %s", version, supportedVersions)
}
