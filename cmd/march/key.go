package main

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/format"
)

func newKey(c *common) *cobra.Command {
	cmd := group("key", "Create and check keys of opaque numbers", newKeyCreate(c), newKeyCheck(c))
	return c.outputFlag(cmd)
}

func newKeyCreate(c *common) *cobra.Command {
	return &cobra.Command{
		Use:   "create FILE",
		Short: "Make a new key of opaque numbers, and print its check value",
		Long: `Make a new key of opaque numbers, which a tag's texts may be, and print its check
value, which the tag needs. The file must not exist yet. Give it to each room with
--opaque-key NAME=FILE, and keep a copy: without it no text leads back to its ID.`,
		Example: `  march key create orders-1.key`,
		Args:    exactly("a file"),
		RunE: func(_ *cobra.Command, args []string) error {
			if err := writeKey(args[0]); err != nil {
				return err
			}
			return c.printCheck(args[0])
		},
	}
}

func newKeyCheck(c *common) *cobra.Command {
	return &cobra.Command{
		Use:     "check FILE",
		Short:   "Print the check value of a key, as a tag has it",
		Example: `  march key check orders-1.key`,
		Args:    exactly("a file"),
		RunE:    func(_ *cobra.Command, args []string) error { return c.printCheck(args[0]) },
	}
}

// writeKey writes a new key to a file, which only its owner may read, and to the disk.
func writeKey(file string) (err error) {
	secret := make([]byte, format.KeySize)
	_, _ = rand.Read(secret) // it never fails
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, os.ErrExist) {
		return usageError{allocator.Errorf(allocator.Exists,
			"file: %s exists already; allowed: a new file, as texts of the old key would be lost", file)}
	}
	if err != nil {
		return usageError{allocator.Errorf(allocator.Invalid, "file: %w", err)}
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if _, err := fmt.Fprintf(f, "%x\n", secret); err != nil {
		return err
	}
	return f.Sync()
}

// printCheck prints the check value of a key. It does not depend on the key's name.
func (c *common) printCheck(file string) error {
	key, err := readKey("key", file)
	if err != nil {
		return usageError{fmt.Errorf("file: %w", err)}
	}
	return c.print(map[string]string{"keyCheck": key.CheckValue()}, func(w *tabwriter.Writer) {
		_, _ = fmt.Fprintln(w, key.CheckValue())
	})
}

// opaqueKeyUsage is the usage of --opaque-key.
const opaqueKeyUsage = "NAME=FILE: a key of opaque numbers, as 'march key create' makes it; may be repeated"

// readKeys reads the keys of --opaque-key. Its errors are usage errors.
func readKeys(flags []string) (keys []format.Key, err error) {
	for _, flag := range flags {
		name, file, found := strings.Cut(flag, "=")
		if !found {
			return nil, usageError{allocator.Errorf(allocator.Invalid, "opaque-key: %q; allowed: NAME=FILE", flag)}
		}
		if slices.ContainsFunc(keys, func(k format.Key) bool { return k.Name() == name }) {
			return nil, usageError{allocator.Errorf(allocator.Invalid,
				"opaque-key: %s is named twice; allowed: one file for each key", name)}
		}
		key, err := readKey(name, file)
		if err != nil {
			return nil, usageError{fmt.Errorf("opaque-key: %w", err)}
		}
		keys = append(keys, key)
	}
	return keys, nil
}

// readKey reads the file of a key, which others must neither read nor write. A group may
// read it, as of a secret that Kubernetes mounts. Its errors are Invalid, and repeat
// nothing of the file.
func readKey(name, file string) (key format.Key, err error) {
	f, err := os.Open(file)
	if err != nil {
		return key, allocator.Errorf(allocator.Invalid, "%w", err)
	}
	defer func() { _ = f.Close() }() // it was only read
	info, err := f.Stat()
	if err != nil {
		return key, allocator.Errorf(allocator.Invalid, "%w", err)
	}
	if mode := info.Mode().Perm(); mode&0o027 != 0 {
		return key, allocator.Errorf(allocator.Invalid,
			"%s has the mode %04o, so others may read or change the key; allowed: 0600 or 0640, say: chmod 600 %s",
			file, mode, file)
	}
	text, err := io.ReadAll(io.LimitReader(f, 4096))
	if err != nil {
		return key, allocator.Errorf(allocator.Invalid, "%w", err)
	}
	return format.ParseKey(name, string(text))
}
