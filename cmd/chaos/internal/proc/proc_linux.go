package proc

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// attributes keep ^C from a process, because this program handles it, and kill the process if
// this program is killed.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// limitFiles changes the soft limit only, so that it can be raised again.
func limitFiles(pid int, bytes uint64) error {
	var limit unix.Rlimit
	if err := unix.Prlimit(pid, unix.RLIMIT_FSIZE, nil, &limit); err != nil {
		return err
	}
	limit.Cur = min(bytes, limit.Max)
	return unix.Prlimit(pid, unix.RLIMIT_FSIZE, &limit, nil)
}
