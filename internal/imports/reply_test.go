package imports

import (
	"bufio"
	"strings"
	"testing"
)

// FuzzReply: no answer of a server makes the reader panic or take more memory than the
// answer is long.
func FuzzReply(f *testing.F) {
	for _, reply := range []string{
		"+OK\r\n", "-ERR no\r\n", ":12\r\n", "$5\r\norder\r\n", "$-1\r\n", "*-1\r\n",
		"*2\r\n$1\r\n0\r\n*1\r\n$1\r\na\r\n",
		"*1048577\r\n", "$1048577\r\n", "*1\r\n$-7\r\n", "*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n:1\r\n",
		"*0\r\n", "%1\r\n+a\r\n:1\r\n",
	} {
		f.Add(reply)
	}
	f.Fuzz(func(t *testing.T, text string) {
		reply, err := readReply(bufio.NewReader(strings.NewReader(text)), 0)
		if err != nil {
			return
		}
		if n := held(t, reply); n > len(text) {
			t.Errorf("%d items and bytes of %q", n, text)
		}
	})
}

// held returns how many items and bytes a reply has.
func held(t *testing.T, reply any) int {
	switch reply := reply.(type) {
	case string:
		return len(reply)
	case refused:
		return len(reply)
	case []any:
		n := len(reply)
		for _, item := range reply {
			n += held(t, item)
		}
		return n
	case int64, nil:
		return 0
	}
	t.Errorf("a reply of type %T", reply)
	return 0
}
