package report_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/march-id/march/cmd/chaos/internal/report"
	"github.com/march-id/march/cmd/chaos/internal/runlog"
)

// reborn returns a history that goes on with another life, as if etcd had been restored to
// its beginning.
func reborn(t *testing.T, content []byte) []byte {
	t.Helper()
	first, _, _ := bytes.Cut(content, []byte("\n"))
	var line map[string]any
	must(t, json.Unmarshal(first, &line))
	line["why"], line["time"] = "revision 1", time.Now()
	text, err := json.Marshal(line)
	must(t, err)
	return fmt.Appendf(content, "%s\n", text)
}

// etcd may go back only by a restore that makes it forget, and only once by each.
func TestLivesNeedRestores(t *testing.T) {
	for _, test := range []struct {
		kind  string // of the restore before; empty if there was none
		lives int
		want  int64
	}{{"", 1, 1}, {runlog.OneCopiedBack, 1, 1}, {"plain", 1, 0}, {"plain", 2, 1}} {
		r := newRun(t)
		r.end()
		if test.kind != "" {
			r.restored(runlog.Event{Kind: test.kind}, 0)
		}
		path := filepath.Join(r.history(), runlog.EtcdsHistory)
		for range test.lives {
			content, err := os.ReadFile(path)
			must(t, err)
			must(t, os.WriteFile(path, reborn(t, content), 0o600))
		}
		got, err := report.Check(bg, r.dir)
		must(t, err)
		if got.Lives != test.lives+1 || got.Rules.Count != test.want {
			t.Errorf("%d times back after %q: %d lives, %v", test.lives, test.kind, got.Lives, got.Rules.Examples)
		}
	}
}
