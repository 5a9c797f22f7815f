package redis

import (
	"bytes"
	"fmt"
)

// Bounds of one command.
const (
	maxArguments = 1024
	maxArgument  = 64 << 10
	maxInline    = 64 << 10
	maxCommand   = 128 << 10 // the whole command
)

// protocolError is an error that is sent to the client before its connection is
// closed.
type protocolError string

func (e protocolError) Error() string { return "Protocol error: " + string(e) }

// parse reads one command from the front of b: an array of bulk strings, or a line. It
// appends the arguments, which are parts of b, to args, none for an empty command; and
// returns the length of the command in bytes, 0 if the command is not complete yet. Its
// error is a protocolError.
func parse(b []byte, args [][]byte) (_ [][]byte, n int, err error) {
	if len(b) == 0 {
		return args, 0, nil
	}
	if b[0] != '*' {
		return parseInline(b, args)
	}
	count, at, err := parseLength(b, 1, "multibulk", maxArguments)
	if err != nil || at == 0 {
		return args, 0, err
	}
	first := len(args)
	for range count { // none for a length below 1, as in Redis
		if at == len(b) {
			return args[:first], 0, tooLong(b)
		}
		if b[at] != '$' {
			return args[:first], 0, protocolError(fmt.Sprintf("expected '$', got '%s'", printable(b[at])))
		}
		size, next, err := parseLength(b, at+1, "bulk", maxArgument)
		switch {
		case err != nil:
			return args[:first], 0, err
		case next == 0:
			return args[:first], 0, tooLong(b)
		case size < 0:
			return args[:first], 0, protocolError("invalid bulk length")
		case len(b)-next < size+2:
			return args[:first], 0, tooLong(b)
		}
		args = append(args, b[next:next+size])
		at = next + size + 2 // Redis does not check the two bytes after it
	}
	return args, at, nil
}

// tooLong returns the error of a command that is not complete and has too many bytes.
func tooLong(b []byte) error {
	if len(b) >= maxCommand {
		return protocolError("too big command")
	}
	return nil
}

// parseLength reads a number and the end of its line, beginning at from. It returns
// where the next line begins, 0 if the line is not complete yet.
func parseLength(b []byte, from int, what string, most int) (length, next int, err error) {
	if from+2 < len(b) && b[from+1] == '\r' && b[from] >= '0' && b[from] <= '9' { // most often
		return int(b[from] - '0'), from + 3, nil
	}
	sign, at := 1, from
	if at < len(b) && b[at] == '-' {
		sign, at = -1, at+1
	}
	for digits := at; at < len(b); at++ {
		switch c := b[at]; {
		case c >= '0' && c <= '9' && length <= most:
			length = 10*length + int(c-'0')
		case c == '\r' && at > digits && length <= most:
			if at+1 == len(b) {
				return 0, 0, nil
			}
			return sign * length, at + 2, nil
		case c >= '0' && c <= '9' && at-from < 32:
		case at-from >= 32:
			return 0, 0, protocolError("too big " + what + " count string")
		default:
			return 0, 0, protocolError("invalid " + what + " length")
		}
	}
	return 0, 0, nil
}

// parseInline reads a command that is a line of words, as a person types it.
func parseInline(b []byte, args [][]byte) (_ [][]byte, n int, err error) {
	end := bytes.IndexByte(b, '\n')
	if end > maxInline || end < 0 && len(b) > maxInline {
		return args, 0, protocolError("too big inline request")
	}
	if end < 0 {
		return args, 0, nil
	}
	first := len(args)
	for line := b[:end]; ; {
		line = bytes.TrimLeft(line, " \t\r")
		if len(line) == 0 {
			return args, end + 1, nil
		}
		word := bytes.IndexAny(line, " \t\r")
		if word < 0 {
			word = len(line)
		}
		if bytes.ContainsAny(line[:word], `"'`) || len(args)-first == maxArguments {
			return args[:first], 0, protocolError("unbalanced quotes in request") // quotes are not supported
		}
		args, line = append(args, line[:word]), line[word:]
	}
}

// printable returns a byte as text for an error.
func printable(c byte) string {
	if c < ' ' || c > '~' {
		return fmt.Sprintf("\\x%02x", c)
	}
	return string(rune(c))
}
