package allocator_test

import (
	"os/exec"
	"strings"
	"testing"
)

// TestArrows checks the dependencies of packages. The allocator depends on the
// standard library only: no network, store or other module takes part in deciding
// which IDs may be issued. Time-ordered IDs (timeid) add the allocator, for its kinds of
// errors; texts (format) add both, for the friendly strings of such IDs, and the calendar
// (period). The client depends neither on the ledger nor on etcd, because its callers need
// neither.
func TestArrows(t *testing.T) {
	goTool, err := exec.LookPath("go")
	if err != nil {
		t.Fatalf("this test asks the go command: %v", err)
	}
	const march = "github.com/march-id/march/"
	for _, p := range []struct {
		name    string
		allowed func(path string) bool
	}{
		{"allocator", func(path string) bool { return path == march+"allocator" }},
		{"allocator/period", func(path string) bool { return path == march+"allocator/period" }},
		{"allocator/timeid", func(path string) bool {
			return path == march+"allocator" || path == march+"allocator/timeid"
		}},
		{"allocator/format", func(path string) bool {
			return path == march+"allocator" || path == march+"allocator/period" || path == march+"allocator/timeid" ||
				path == march+"allocator/format"
		}},
		{"api/client", func(path string) bool {
			if strings.HasPrefix(path, march) {
				return path == march+"allocator" || path == march+"allocator/period" ||
					path == march+"allocator/timeid" || path == march+"allocator/format" ||
					path == march+"allocator/texts" || path == march+"api" || path == march+"api/tlsfiles" ||
					path == march+"api/march/v1" || path == march+"api/client"
			}
			return !strings.HasPrefix(path, "go.etcd.io/")
		}},
	} {
		cmd := exec.CommandContext(t.Context(), goTool, "list", "-deps", "-f",
			"{{if not .Standard}}{{.ImportPath}}{{end}}", march+p.name)
		var stderr strings.Builder
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%v: %v\n%s", cmd, err, stderr.String())
		}
		paths := strings.Fields(string(out))
		if len(paths) == 0 {
			t.Errorf("%s: no dependencies found, not even itself", p.name)
		}
		for _, path := range paths {
			if !p.allowed(path) {
				t.Errorf("%s depends on %s", p.name, path)
			}
		}
	}
}
