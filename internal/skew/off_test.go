//go:build !chaos

package skew_test

import (
	"testing"

	"github.com/march-id/march/internal/skew"
)

// The product has the computer's clock, whatever its environment says.
func TestTheProductHasTheComputersClock(t *testing.T) {
	t.Setenv(skew.Variable, "/nowhere")
	if skew.Now() != nil {
		t.Error("the product has a clock of its own")
	}
}
