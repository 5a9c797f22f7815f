package main

import (
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/internal/access"
)

func newToken(c *common) *cobra.Command {
	var file, out string
	var lasts time.Duration
	create := &cobra.Command{
		Use:   "create NAME",
		Short: "Make a token, and add its hash to a file of tokens",
		Long: `Make a token, and print it, once, or write it to the file of --out, which only
you can read. Only its hash goes to the file of --tokens, which rooms and
consoles read; a policy calls its owner token:NAME. To revoke a token, delete
its line: the servers follow within seconds; where it was the last one, leave a
line such as "# none", as an empty file is taken for a broken one. Two tokens may have
one name, so that the new one is in use before the old one goes.`,
		Example: `  march token create shop --tokens tokens --expires 2160h --out shop.token`,
		Args:    exactly("the token's name"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if lasts < 0 {
				return allocator.Errorf(allocator.Invalid,
					"expires: %v; allowed: 0s, for a token that does not end, or more", lasts)
			}
			if err := required(cmd, "tokens"); err != nil {
				return err
			}
			var ends time.Time
			if lasts > 0 {
				ends = time.Now().Add(lasts)
			}
			token, line, err := access.NewToken(args[0], ends)
			if err != nil {
				return err
			}
			if out != "" { // first, so that no line is without its token
				if err := createSecret("out", out, token+"\n"); err != nil {
					return err
				}
			}
			if err := appendLine(file, line); err != nil {
				return err
			}
			where := "in " + out
			if out == "" {
				where = "shown only now: keep it"
				if _, err := fmt.Fprintln(c.stdout, token); err != nil {
					return err
				}
			}
			_, _ = fmt.Fprintf(c.stderr, "the token of token:%s is %s. Its hash is in %s\n", args[0], where, file)
			return nil
		},
	}
	create.PersistentFlags().StringVar(&file, "tokens", "",
		"the file of tokens' hashes; it is made if it does not exist")
	create.Flags().StringVar(&out, "out", "",
		"a new file for the token, which only you can read, instead of printing it")
	create.Flags().DurationVar(&lasts, "expires", 0,
		"how long the token may be used; 0 for as long as it is in the file")
	return group("token", "Make tokens with which callers prove who they are", create)
}

// appendLine adds a line to a file. A last line that has no end gets one.
func appendLine(path, line string) (err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return allocator.Errorf(allocator.Invalid, "tokens: %w", err)
	}
	defer func() {
		if closed := f.Close(); err == nil {
			err = closed
		}
	}()
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	if size > 0 {
		last := make([]byte, 1)
		if _, err := f.ReadAt(last, size-1); err != nil {
			return err
		}
		if last[0] != '\n' {
			line = "\n" + line
		}
	}
	_, err = f.WriteString(line + "\n")
	return err
}
