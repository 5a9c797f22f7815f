package journal

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/march-id/march/allocator"
)

func mark(next int64) Record { return Record{Marks: []Mark{{"t", next, 1}}} }

// soon is the time by which the writer has tried again.
const soon = 3 * lookEvery

// openOn opens a journal on a disk with faults, and appends a first mark.
func openOn(t *testing.T, d disk) (j *Journal, path string, log *bytes.Buffer) {
	t.Helper()
	path, log = filepath.Join(t.TempDir(), "x", "j"), &bytes.Buffer{}
	j, _, err := open(t.Context(), d, path, head, hclog.New(&hclog.LoggerOptions{Output: log}))
	if err == nil {
		err = j.Append(t.Context(), mark(1))
	}
	if err != nil {
		t.Fatal(err)
	}
	return j, path, log
}

// holds checks what a process that starts now would read.
func holds(t *testing.T, path string, next int64) {
	t.Helper()
	if s, err := Read(path); err != nil || s.Marks["t"].Next != next || s.UUID != "u" {
		t.Errorf("the file holds %+v, %v; want %d", s, err, next)
	}
}

// faults checks which fault an error of the journal is.
func faults(t *testing.T, err error, want Fault) {
	t.Helper()
	if e, is := errors.AsType[*UnwritableError](err); !is || e.Fault() != want {
		t.Errorf("%v is not fault %d", err, want)
	}
}

// unwritable checks an error of a journal in trouble.
func unwritable(t *testing.T, err error, path string, says ...string) {
	t.Helper()
	if err == nil || allocator.KindOf(err) != allocator.Unavailable {
		t.Fatalf("got %v", err)
	}
	for _, text := range append(says, "journal "+path+" cannot be written, nothing is leased until it can, "+
		"since 2000-01-01T") {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("%q does not say %q", err, text)
		}
	}
}

// TestFaults makes each operation of the disk fail: once without effect, and once with its
// effect and a lost answer. If Append returns nil, the record is in the file. Otherwise the
// error says what failed, and the next Append fails at once. Once the disk works again, the
// writer writes all records without a further call.
func TestFaults(t *testing.T) {
	for _, op := range []string{"lock", "create", "write", "sync", "rename", "sync folder", "stat", "remove", "close"} {
		for _, f := range []fate{notDone, lost} {
			for what, hurt := range map[string]func(path string) error{
				"append":         func(string) error { return nil },
				"file removed":   os.Remove,
				"folder removed": func(path string) error { return os.RemoveAll(filepath.Dir(path)) },
			} {
				t.Run(fmt.Sprint(op, f, what), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) { testFault(t, op, f, hurt) })
				})
			}
		}
	}
}

func testFault(t *testing.T, op string, f fate, hurt func(path string) error) {
	d := &faulty{}
	j, path, _ := openOn(t, d)
	d.is(op, f, syscall.ENOSPC)
	if err := hurt(path); err != nil {
		t.Fatal(err)
	}
	want := int64(2)
	if err := j.Append(t.Context(), mark(2)); err == nil {
		holds(t, path, 2)
	} else {
		unwritable(t, err, path, op, "no space left on device")
		faults(t, err, Full)
		unwritable(t, j.Ready(), path)
		if s, err := Read(path); err == nil && s.Marks["t"].Next < 1 {
			t.Errorf("the file fell back: %+v", s)
		}
		began := time.Now()
		unwritable(t, j.Append(t.Context(), mark(3)), path)
		if took := time.Since(began); took != 0 {
			t.Errorf("the next Append took %v", took)
		}
		want = 3
	}
	d.isWell()
	time.Sleep(soon)
	if err := j.Ready(); err != nil {
		t.Errorf("ready afterwards: %v", err)
	}
	holds(t, path, want)
	if err := j.Append(t.Context(), mark(4)); err != nil {
		t.Error(err)
	}
	if err := j.Close(); err != nil {
		t.Error(err)
	}
	holds(t, path, 4)
}

// TestHangs makes each operation of the disk hang. Append returns when its context ends, and
// within patience without one. Later calls fail at once. All records are written when the disk
// answers.
func TestHangs(t *testing.T) {
	for _, op := range []string{"write", "sync", "stat", "lock", "create", "rename", "sync folder", "close"} {
		t.Run(op, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := &faulty{}
				j, path, log := openOn(t, d)
				if op != "write" && op != "sync" && op != "stat" {
					if err := os.RemoveAll(filepath.Dir(path)); err != nil { // it is written anew then
						t.Fatal(err)
					}
				}
				d.is(op, hangs, nil)
				began := time.Now()
				short, cancel := context.WithTimeout(t.Context(), time.Millisecond)
				defer cancel()
				if err := j.Append(short, mark(2)); !errors.Is(err, context.DeadlineExceeded) ||
					time.Since(began) != time.Millisecond {
					t.Errorf("with a deadline: %v after %v", err, time.Since(began))
				}
				err := j.Append(context.Background(), mark(3))
				unwritable(t, err, path, "the disk hangs", "asked to "+op)
				faults(t, err, Hangs)
				if took := time.Since(began); took > patience+lookEvery {
					t.Errorf("noticed after %v", took)
				}
				noticed := time.Now()
				unwritable(t, j.Ready(), path, "the disk hangs")
				unwritable(t, j.Append(context.Background(), mark(4)), path, "the disk hangs")
				if err := j.Note(mark(5)); err != nil {
					t.Error(err)
				}
				if took := time.Since(noticed); took != 0 {
					t.Errorf("while it hung, calls took %v", took)
				}
				time.Sleep(time.Hour)
				synctest.Wait() // for the log, which is written after the unlock
				if n := strings.Count(log.String(), "nothing is leased"); n != 1 {
					t.Errorf("logged %d times: %s", n, log)
				}
				d.isWell()
				time.Sleep(soon)
				synctest.Wait()
				if err := j.Ready(); err != nil || !strings.Contains(log.String(), "can be written again") {
					t.Errorf("afterwards: %v; %s", err, log)
				}
				holds(t, path, 5)
				if err := j.Close(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// TestClosesWhileItHangs closes a journal while its disk hangs. That takes seconds, and the
// goroutine that waits for the disk ends with it. (synctest fails if a goroutine is left.)
func TestClosesWhileItHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &faulty{}
		j, path, _ := openOn(t, d)
		d.is("sync", hangs, nil)
		unwritable(t, j.Append(context.Background(), mark(2)), path)
		began := time.Now()
		if err := j.Close(); err == nil || !strings.Contains(err.Error(), "its disk hangs") ||
			time.Since(began) > 2*patience {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		if err := j.Append(context.Background(), mark(3)); err == nil || !errors.Is(err, fs.ErrClosed) {
			t.Errorf("appended after Close: %v", err)
		}
		if _, _, err := Open(t.Context(), path, head, nil); err == nil ||
			!strings.Contains(err.Error(), "another process has it") {
			t.Errorf("opened while the old one still writes: %v", err)
		}
		d.isWell()
		synctest.Wait()
		if err := j.Close(); err != nil {
			t.Error(err)
		}
		holds(t, path, 2)
	})
}

// TestOpenHangs opens a journal on a disk that hangs: the error comes when the
// context ends, or after a minute.
func TestOpenHangs(t *testing.T) {
	for _, op := range []string{"lock", "read", "create", "sync"} {
		synctest.Test(t, func(t *testing.T) {
			d := &faulty{}
			d.is(op, hangs, nil)
			path := filepath.Join(t.TempDir(), "j")
			if _, _, err := open(context.Background(), d, path, head,
				nil); allocator.KindOf(err) != allocator.Unavailable || !strings.Contains(err.Error(), path) {
				t.Errorf("%s: %v", op, err)
			}
			d.isWell()
			synctest.Wait() // until the goroutine has ended
		})
	}
}

// TestGone takes the file of a running journal away in every way. The journal is soon there
// again, whole, without any call.
func TestGone(t *testing.T) {
	for what, hurt := range map[string]func(path string) error{
		"file removed":   os.Remove,
		"folder removed": func(path string) error { return os.RemoveAll(filepath.Dir(path)) },
		"lock removed":   func(path string) error { return os.Remove(path + lockSuffix) },
		"folder moved":   func(path string) error { return os.Rename(filepath.Dir(path), filepath.Dir(path)+"2") },
		"replaced": func(path string) error {
			return errors.Join(os.WriteFile(path+"2", []byte("x\n"), 0o600), os.Rename(path+"2", path))
		},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				j, path, log := openOn(t, osDisk{})
				if err := hurt(path); err != nil {
					t.Fatal(err)
				}
				time.Sleep(soon)
				holds(t, path, 1)
				if _, _, err := Open(t.Context(), path, head, nil); err == nil ||
					!strings.Contains(err.Error(), "another process has it") {
					t.Errorf("opened twice: %v", err)
				}
				if err := os.Remove(path); err != nil {
					t.Fatal(err)
				}
				if err := j.Append(t.Context(), mark(2)); err != nil { // which notices by itself
					t.Error(err)
				}
				holds(t, path, 2)
				if err := errors.Join(j.Ready(), j.Close()); err != nil {
					t.Error(err)
				}
				if !strings.Contains(log.String(), "removed or replaced") {
					t.Errorf("not logged: %s", log)
				}
			})
		})
	}
}

// TestTakenOver removes the folder of a running journal, and another process opens one there.
// The first process does not touch that journal, and returns an error.
func TestTakenOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &faulty{}
		j, path, _ := openOn(t, d)
		d.is("stat", hangs, nil) // so that the first process does not look meanwhile
		if err := os.RemoveAll(filepath.Dir(path)); err != nil {
			t.Fatal(err)
		}
		other, _, err := Open(t.Context(), path, head, nil)
		if err == nil {
			err = other.Append(t.Context(), mark(100))
		}
		if err != nil {
			t.Fatal(err)
		}
		d.isWell()
		time.Sleep(soon)
		unwritable(t, j.Ready(), path, "another process has it")
		faults(t, j.Ready(), Shared)
		unwritable(t, j.Append(t.Context(), mark(2)), path)
		holds(t, path, 100)
		if err := other.Close(); err != nil {
			t.Error(err)
		}
		if err := j.Close(); err != nil {
			t.Error(err)
		}
	})
}
