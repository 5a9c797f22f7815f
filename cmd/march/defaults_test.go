package main

import (
	"io"
	"os"
	"regexp"
	"strings"
	"testing"
)

// TestTagDefaults compares the defaults that the documents and the proto state for a tag's
// settings with those of `march tag create`, which are the ledger's.
func TestTagDefaults(t *testing.T) {
	t.Parallel()
	cmd, _, err := newRoot(io.Discard, io.Discard).Find([]string{"tag", "create"})
	if err != nil {
		t.Fatal(err)
	}
	plain := strings.NewReplacer(",", "", "2^63-1", "9223372036854775807", "10^15", "1000000000000000", "10 minutes", "10m0s", " no bound", "", "off", "false")
	same := func(where, flag, stated string) {
		f := cmd.Flag(flag)
		switch got := plain.Replace(stated); {
		case f == nil:
			t.Errorf("%s: there is no flag --%s", where, flag)
		case got == "none" && (f.DefValue == "" || f.DefValue == "0"):
		case got != f.DefValue && got+"0s" != f.DefValue:
			t.Errorf("%s: the default of %s is %q, but of the flag %q", where, flag, stated, f.DefValue)
		}
	}
	_, section, _ := strings.Cut(readDocument(t, "docs/operate.md"), "\n### Settings of a tag\n")
	section, _, _ = strings.Cut(section, "\n### ")
	rows := regexp.MustCompile("(?m)^\\| `--([a-z-]+)` \\| ([^|]+) \\|").FindAllStringSubmatch(section, -1)
	for _, m := range rows {
		same("docs/operate.md", m[1], m[2])
	}

	proto, err := os.ReadFile("../../api/march/v1/tag.proto")
	if err != nil {
		t.Fatal(err)
	}
	message, _, _ := strings.Cut(string(proto), "\nmessage TimeTag") // the settings of counters come first
	fields := 0
	for _, field := range regexp.MustCompile(`(?s)((?: *//[^\n]*\n)+) *optional [A-Za-z0-9.]+ ([a-z_]+) =`).FindAllStringSubmatch(message, -1) {
		comment := strings.Join(strings.Fields(strings.ReplaceAll(field[1], "//", "")), " ")
		if m := regexp.MustCompile(`[Dd]efault ((?:[^.;]|\.\d)+)`).FindStringSubmatch(comment); m != nil {
			fields++
			same("tag.proto", strings.ReplaceAll(field[2], "_", "-"), m[1])
		}
	}
	if len(rows) < 8 || fields < 6 {
		t.Errorf("%d rows and %d fields found", len(rows), fields)
	}
}
