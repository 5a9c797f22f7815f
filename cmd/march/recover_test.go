package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/march-id/march/allocator"
)

// Every flag that recover's errors name is one of its own.
func TestRecoverNamesItsFlags(t *testing.T) {
	files, err := filepath.Glob("../../allocator/ledger/recovery/*.go")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	cmd, named := newRecover(&common{}), 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, flag := range regexp.MustCompile("[ (]--([a-z][a-z-]*)").FindAllStringSubmatch(string(text), -1) {
			named++
			if cmd.Flag(flag[1]) == nil {
				t.Errorf("%s names --%s, which recover lacks", file, flag[1])
			}
		}
	}
	if named < 5 {
		t.Errorf("%d flags are named", named)
	}
}

// An instance that requires a journal needs one.
func TestRequireJournalFlag(t *testing.T) {
	t.Parallel()
	if _, stderr, code := march(t, "room", "a", "--require-journal", "--journal", "off"); code != exitUsage ||
		!strings.Contains(stderr, "--journal DIR") {
		t.Errorf("off: exit code %d, %s", code, stderr)
	}
}

// Where journals are by default.
func TestJournalDir(t *testing.T) {
	for _, test := range []struct{ set, state, xdg, home, want string }{
		{"off", "/s", "/x", "/h", ""},
		{"/j", "/s", "/x", "/h", "/j"},
		{"", "/s:/t", "/x", "/h", "/s"},
		{"", "", "/x", "/h", "/x/march"},
		{"", "", "relative", "/h", "/h/.local/state/march"},
		{"", "", "", "/h", "/h/.local/state/march"},
	} {
		t.Setenv("STATE_DIRECTORY", test.state)
		t.Setenv("XDG_STATE_HOME", test.xdg)
		t.Setenv("HOME", test.home)
		if got, err := journalDir(test.set); err != nil || got != test.want {
			t.Errorf("%+v: %q, %v", test, got, err)
		}
	}
	t.Setenv("HOME", "")
	_ = os.Unsetenv("HOME")
	if _, err := journalDir(""); allocator.KindOf(err) != allocator.Invalid ||
		!slices.Contains(strings.Fields(err.Error()), "--journal") {
		t.Errorf("without a home: %v", err)
	}
}
