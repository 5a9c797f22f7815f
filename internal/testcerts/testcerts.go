// Package testcerts makes certificates for tests.
package testcerts

import (
	"testing"
	"time"

	"github.com/march-id/march/api/tlsfiles"
	"github.com/march-id/march/internal/certs"
)

// CA signs certificates into a folder of its own.
type CA struct {
	*certs.CA
	Dir  string
	Root string // the file with its own certificate
	tb   testing.TB
}

// New returns a CA.
func New(tb testing.TB) *CA {
	tb.Helper()
	ca, err := certs.New("test", time.Hour)
	if err != nil {
		tb.Fatal(err)
	}
	c := &CA{CA: ca, Dir: tb.TempDir(), tb: tb}
	if c.Root, err = ca.WriteCA(c.Dir, "ca"); err != nil {
		tb.Fatal(err)
	}
	return c
}

// Write issues a certificate into the folder.
func (c *CA) Write(name string, l certs.Leaf) certs.Pair {
	c.tb.Helper()
	pair, err := c.CA.Write(c.Dir, name, l)
	if err != nil {
		c.tb.Fatal(err)
	}
	return pair
}

// Open opens a certificate's files.
func Open(tb testing.TB, cfg tlsfiles.Config) *tlsfiles.Files {
	tb.Helper()
	files, err := tlsfiles.Open(cfg)
	if err != nil {
		tb.Fatal(err)
	}
	return files
}
