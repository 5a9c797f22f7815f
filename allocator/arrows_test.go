package allocator_test

import (
	"os/exec"
	"strings"
	"testing"
)

// TestArrows holds the package to the standard library: what decides which IDs
// may be issued depends on no network, no store and no one else's release.
func TestArrows(t *testing.T) {
	goTool, err := exec.LookPath("go")
	if err != nil {
		t.Skipf("the go command is not on the path: %v", err)
	}
	const self = "github.com/march-id/march/allocator"
	cmd := exec.CommandContext(t.Context(), goTool, "list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}", self)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v\n%s", cmd, err, stderr.String())
	}
	if got := strings.Fields(string(out)); len(got) != 1 || got[0] != self {
		t.Errorf("outside the standard library, allocator depends on %q, want itself only", got)
	}
}
