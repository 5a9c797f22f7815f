//go:build !mutant

package sim_test

import (
	"bytes"
	"os"
	"regexp"
	"testing"
)

// Nothing of the mistakes that are made on purpose (see sim/mutants) is in a
// program that is built without them: this one has all the packages that they
// are in.
func TestNoMistakeIsBuiltIn(t *testing.T) {
	if raceEnabled {
		t.Skip("with the race detector the compiler leaves in what is never used; make test has this")
	}
	list, err := os.ReadFile("mutants/list.go")
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	names := regexp.MustCompile(`name: "([a-z-]+)"`).FindAllSubmatch(list, -1)
	if len(names) < 20 {
		t.Errorf("%d mistakes are listed, want more", len(names))
	}
	for _, name := range names {
		if bytes.Contains(program, name[1]) {
			t.Errorf("mistake %s is in the program", name[1])
		}
	}
}
