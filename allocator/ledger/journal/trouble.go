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
	return fmt.Sprintf("journal %s cannot be written, nothing is leased until it can, since %s: %v; %s",
		e.Path, e.Since.Format(time.RFC3339), e.Err, e.Remedy())
}

// Unwrap returns what the disk said.
func (e *UnwritableError) Unwrap() error { return e.Err }

// Remedy returns what the operator should do, beginning with a small letter.
func (e *UnwritableError) Remedy() string { return remedy(e.Err) }

func remedy(err error) string {
	var hangs *hangError
	switch {
	case errors.As(err, &hangs):
		return "check its disk and mount; the instance goes on by itself when the disk answers"
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT), errors.Is(err, syscall.EFBIG):
		return "free space on its disk; the instance goes on by itself then"
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
		return "let the instance write in its folder; it goes on by itself then"
	case errors.Is(err, errLocked):
		return "stop one of the two"
	case errors.Is(err, fs.ErrClosed):
		return "the instance is stopping"
	default:
		return "check its disk and folder; the instance goes on by itself when both are well"
	}
}
