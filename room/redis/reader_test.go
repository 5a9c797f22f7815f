package redis

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
)

func words(args [][]byte) string { return string(bytes.Join(args, []byte("|"))) }

func TestParse(t *testing.T) {
	for in, want := range map[string]string{
		"*2\r\n$4\r\nINCR\r\n$1\r\na\r\n":       "INCR|a",
		"*1\r\n$4\r\nPING\r\n*1\r\n$4\r\nPING":  "PING",
		"*2\r\n$3\r\nGET\r\n$4\r\na\r\nb\r\n":   "GET|a\r\nb",
		"*2\r\n$4\r\nECHO\r\n$0\r\n\r\n":        "ECHO|",
		"*0\r\n":                                "",
		"*-1\r\n":                               "",
		"PING\r\n":                              "PING",
		"  incr \t a \r\n":                      "incr|a",
		"\r\n":                                  "",
		"ping\n":                                "ping",
		"*1\r\n$7\r\nCOMMAND\r\nrest of others": "COMMAND",
	} {
		args, n, err := parse([]byte(in), nil)
		if err != nil || n == 0 || words(args) != want {
			t.Errorf("%q: %q, %d bytes, %v; want %q", in, words(args), n, err, want)
		}
		for k := range n { // no part of it is a command
			if args, part, err := parse([]byte(in[:k]), nil); part != 0 || err != nil || len(args) != 0 {
				t.Errorf("%q: %q, %d bytes, %v", in[:k], words(args), part, err)
			}
		}
	}
}

func TestParseRefuses(t *testing.T) {
	for in, want := range map[string]string{
		"*x\r\n":                            "invalid multibulk length",
		"*1025\r\n":                         "invalid multibulk length",
		"*99999999999999999999\r\n":         "invalid multibulk length",
		"*1\r\n:1\r\n":                      "expected '$', got ':'",
		"*1\r\n\x00":                        `expected '$', got '\x00'`,
		"*1\r\n$-7\r\n":                     "invalid bulk length",
		"*1\r\n$65537\r\n":                  "invalid bulk length",
		"*1\r\n$" + strings.Repeat("1", 40): "too big bulk count string",
		"*" + strings.Repeat("1", 40):       "too big multibulk count string",
		strings.Repeat("a", maxInline+1):    "too big inline request",
		`PING "a` + "\r\n":                  "unbalanced quotes in request",
		strings.Repeat("a ", 1025) + "\r\n": "unbalanced quotes in request",
		"*3\r\n" + strings.Repeat(fmt.Sprintf("$%d\r\n%s\r\n", maxArgument, strings.Repeat("x", maxArgument)),
			2) + "$": "too big command",
	} {
		args, n, err := parse([]byte(in), nil)
		var refused protocolError
		if !errors.As(err, &refused) || string(refused) != want || n != 0 || len(args) != 0 {
			t.Errorf("%.40q: %d arguments, %d bytes, %v; want %s", in, len(args), n, err, want)
		}
	}
}

// FuzzParse: what is read again from its own words is the same; and nothing that was read
// is out of bounds.
func FuzzParse(f *testing.F) {
	for _, in := range []string{"*2\r\n$4\r\nINCR\r\n$1\r\na\r\n", "PING\r\n", "*1\r\n$-7\r\n",
		"*1\r\n$7\r\n", "*-1\r\n"} {
		f.Add([]byte(in))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		args, n, err := parse(in, nil)
		if err != nil && (n != 0 || len(args) != 0) || n < 0 || n > len(in) || len(args) > maxArguments {
			t.Fatalf("%d arguments, %d bytes, %v", len(args), n, err)
		}
		if n == 0 || len(args) == 0 {
			return
		}
		var out []byte
		out = fmt.Appendf(out, "*%d\r\n", len(args))
		for _, a := range args {
			out = fmt.Appendf(out, "$%d\r\n%s\r\n", len(a), a)
		}
		again, _, err := parse(out, nil)
		if err != nil || words(again) != words(args) {
			t.Fatalf("%q was read as %q, and that as %q, %v", in, words(args), words(again), err)
		}
	})
}
