package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"
)

// readLine returns at ^C, even if no answer comes.
func TestReadLine(t *testing.T) {
	silent, stop := io.Pipe()
	defer stop.Close()
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if line, err := readLine(gone, silent); !errors.Is(err, context.Canceled) || line != "" {
		t.Errorf("interrupted: %q, %v", line, err)
	}
	for text, want := range map[string]string{"y\nmore": "y\n", "y": "y", "": ""} {
		if line, err := readLine(t.Context(), strings.NewReader(text)); line != want || err != nil {
			t.Errorf("%q: got %q, %v", text, line, err)
		}
	}
	silent.CloseWithError(errors.New("torn off"))
	if _, err := readLine(t.Context(), silent); err == nil || err.Error() != "io: read/write on closed pipe" {
		t.Errorf("torn off: %v", err)
	}
}

// If an operator interrupts a watch before it shows a migration, nothing is printed.
func TestWatchInterrupted(t *testing.T) {
	mute, err := net.Listen("tcp", "127.0.0.1:0") // the system accepts connections, no server does
	if err != nil {
		t.Fatal(err)
	}
	defer mute.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var stdout, stderr bytes.Buffer
	c := &common{stdout: &stdout, stderr: &stderr, output: "text"}
	err = watch(ctx, c, &target{what: "console", address: mute.Addr().String(), timeout: time.Second}, "")
	if !errors.Is(err, context.Canceled) || stdout.Len()+stderr.Len() > 0 {
		t.Errorf("got %v, stdout %q, stderr %q", err, &stdout, &stderr)
	}
}
