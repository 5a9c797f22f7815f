package api_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/api"
)

// A process that passes a call on is not to take its own refusal for one of the process that it calls.
func TestTokenThatIsNotSentIsNoAnswer(t *testing.T) {
	path := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(path, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := api.TokenFile(path).GetRequestMetadata(t.Context(), "https://another.example:7010/march.v1.IDService")
	if kind := allocator.KindOf(api.FromStatus(err)); kind != allocator.Unauthenticated || api.FromServer(err) {
		t.Errorf("%v is of kind %v, and from a server: %v", err, kind, api.FromServer(err))
	}
}
