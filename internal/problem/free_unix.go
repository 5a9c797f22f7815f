//go:build unix

package problem

import "golang.org/x/sys/unix"

// free returns how many bytes the disk of a directory takes yet.
func free(dir string) (int64, bool) {
	var s unix.Statfs_t
	if unix.Statfs(dir, &s) != nil {
		return 0, false
	}
	return int64(s.Bavail) * int64(s.Bsize), true //nolint:unconvert // the types differ between systems
}
