//go:build unix && !linux

package proc

import (
	"errors"
	"syscall"
)

// attributes keep ^C from a process, because this program handles it.
func attributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

func limitFiles(int, uint64) error { return errors.ErrUnsupported }
