package main

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/format"
	"github.com/march-id/march/internal/smallfile"
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
			secret := make([]byte, format.KeySize)
			_, _ = rand.Read(secret) // it never fails
			if err := createSecret("file", args[0], fmt.Sprintf("%x\n", secret)); err != nil {
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

// createSecret writes a secret to a new file, which only its owner may read, and to the disk. field names the file in
// errors. An old file stays: what it has may be the only copy.
func createSecret(field, file, secret string) (err error) {
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, os.ErrExist) {
		return usageError{allocator.Errorf(allocator.Exists,
			"%s: %s exists already; allowed: a new file, as its secret would be lost", field, file)}
	}
	if err != nil {
		return usageError{allocator.Errorf(allocator.Invalid, "%s: %w", field, err)}
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if _, err := f.WriteString(secret); err != nil {
		return err
	}
	return f.Sync()
}

// printCheck prints the check value of a key. It does not depend on the key's name.
func (c *common) printCheck(file string) error {
	key, err := readKey("file", "key", file)
	if err != nil {
		return usageError{err}
	}
	return c.print(map[string]string{"keyCheck": key.CheckValue()}, func(w *tabwriter.Writer) {
		_, _ = fmt.Fprintln(w, key.CheckValue())
	})
}

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
		key, err := readKey("opaque-key", name, file)
		if err != nil {
			return nil, usageError{err}
		}
		keys = append(keys, key)
	}
	return keys, nil
}

// readKey reads the file of a key, which others must neither read nor write. A group may
// read it, as of a secret that Kubernetes mounts. Its errors are Invalid, and repeat
// nothing of the file.
func readKey(setting, name, file string) (key format.Key, err error) {
	if why := smallfile.Exposed(file); why != "" {
		return key, allocator.Errorf(allocator.Invalid, "%s: %s", setting, why)
	}
	text, err := smallfile.Read(setting, file, maxSecret)
	if err != nil {
		return key, err
	}
	if key, err = format.ParseKey(name, string(text)); err != nil {
		return key, fmt.Errorf("%s: %w", setting, err)
	}
	return key, nil
}
