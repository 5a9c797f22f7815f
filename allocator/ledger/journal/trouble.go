package journal

import (
	"errors"
	"fmt"
	"io/fs"
	"syscall"
	"time"
)

// trouble says why nothing can be written. The journal replaces it when the trouble is over.
type trouble struct {
	begun chan struct{} // closed when err is set
	err   error
}

// hangError says that an operation of the disk does not end.
type hangError struct {
	what  string
	since time.Time
}

func (e *hangError) Error() string {
	return fmt.Sprintf("the disk hangs: it was asked to %s at %s, and has not answered", e.what,
		e.since.Format(time.RFC3339))
}

// UnwritableError says that a journal cannot be written.
type UnwritableError struct {
	Path  string
	Since time.Time
	Err   error // what the disk said
}

func (e *UnwritableError) Error() string {
	return fmt.Sprintf("journal %s cannot be written, nothing is leased until it can, since %s: %v", e.Path,
		e.Since.Format(time.RFC3339), e.Err)
}

// Unwrap returns what the disk said.
func (e *UnwritableError) Unwrap() error { return e.Err }

// Fault is why a journal cannot be written.
type Fault int

// The faults. Other is the zero value.
const (
	Other  Fault = iota
	Full         // its disk
	Denied       // the process may not write there
	Hangs        // its disk
	Shared       // another process has it
)

// Fault returns why.
func (e *UnwritableError) Fault() Fault {
	var hangs *hangError
	switch {
	case errors.As(e.Err, &hangs):
		return Hangs
	case errors.Is(e.Err, syscall.ENOSPC), errors.Is(e.Err, syscall.EDQUOT), errors.Is(e.Err, syscall.EFBIG):
		return Full
	case errors.Is(e.Err, fs.ErrPermission), errors.Is(e.Err, syscall.EROFS):
		return Denied
	case errors.Is(e.Err, errLocked):
		return Shared
	}
	return Other
}
