package login_test

import (
	"strings"
	"testing"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/console/login"
)

// Settings that cannot work are refused.
func TestSettings(t *testing.T) {
	for name, cfg := range map[string]login.Config{
		"public-url: \"http://march.example\"":  {PublicURL: "http://march.example"},
		"public-url: \"march.example\"":         {PublicURL: "march.example"},
		"public-url: \"https://a/b\"":           {PublicURL: "https://a/b"},
		"public-url: none":                      {ClientID: "console"},
		"session-key-file: 5 bytes":             {Key: []byte("short")},
		"session-lasts: 200h0m0s; allowed: abo": {Lasts: 200 * time.Hour},
	} {
		if err := cfg.Validate(); allocator.KindOf(err) != allocator.Invalid || !strings.Contains(err.Error(), name) {
			t.Errorf("%+v: %v", cfg, err)
		}
	}
}
