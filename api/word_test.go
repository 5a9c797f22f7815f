package api_test

import (
	"testing"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
)

// TestWord: each value of an enum has a word, by which it is found again. A number of a
// newer server is its own word.
func TestWord(t *testing.T) {
	t.Parallel()
	for number, name := range marchv1.ProblemKind_name {
		kind := marchv1.ProblemKind(number)
		if word := api.Word(kind); api.FromWord[marchv1.ProblemKind](word) != kind {
			t.Errorf("%s: word %q, of which %v comes again", name, word, api.FromWord[marchv1.ProblemKind](word))
		}
	}
	for got, want := range map[string]string{
		api.Word(marchv1.ProblemKind_PROBLEM_KIND_ETCD_FULL): "etcd_full",
		api.Word(marchv1.MoveKind_MOVE_KIND_UNSPECIFIED):     "unspecified",
		api.Word(marchv1.TagSort_TAG_SORT_NEXT):              "next", api.Word(marchv1.MigrationState(99)): "99",
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	for _, word := range []string{"", "unspecified", "Required", "REQUIRED", "JOURNAL_MODE_REQUIRED", "2"} {
		_, err := api.ParseWord[marchv1.JournalMode]("journal", word)
		if allocator.KindOf(err) != allocator.Invalid {
			t.Errorf("%q: %v", word, err)
		}
	}
	mode, err := api.ParseWord[marchv1.JournalMode]("journal", "required")
	if err != nil || mode != marchv1.JournalMode_JOURNAL_MODE_REQUIRED {
		t.Errorf("got %v, %v", mode, err)
	}
	const want = `journal: "odd"; allowed: optional, required`
	if _, err := api.ParseWord[marchv1.JournalMode]("journal", "odd"); err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	const wantNames = "journal: 7; allowed: JOURNAL_MODE_OPTIONAL, JOURNAL_MODE_REQUIRED"
	if err := api.NotAllowed("journal", marchv1.JournalMode(7)); err.Error() != wantNames {
		t.Errorf("got %v, want %s", err, wantNames)
	}
}
