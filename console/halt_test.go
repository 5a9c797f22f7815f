package console_test

import (
	"testing"

	"github.com/march-id/march/allocator"
)

// TestHalted: a console tells of a halt wherever it is asked, goes on answering,
// and forgets nobody meanwhile.
func TestHalted(t *testing.T) {
	t.Parallel()
	c := startHalves(t)
	c.room("a", "a1")
	c.wants("GET /v1/layout", 200, `"halt":null`)
	c.wants("GET /readyz?verbose", 200, "[+]leasing ok\n")
	l := c.ledger()
	if _, err := l.Halt(bg, "ann", "tonight's restore"); err != nil {
		t.Fatal(err)
	}
	const halt = `"halt":{"by":"ann","why":"tonight's restore","time":"`
	c.wants("GET /v1/layout", 200, halt)
	c.wants("GET /v1/instances", 200, halt)
	c.wants("GET /readyz?verbose", 200, "[+]etcd ok\n[+]leasing ok: leasing is halted by ann since ")
	c.wants("DELETE /v1/rooms/a/instances/a1", 400, `"reason":"`+allocator.WentBack.Error()+`","message":"leasing is halted by ann since `)
	c.wants("GET /v1/instances", 200, `"instances":[{"room":"a","name":"a1"`)
	c.wants(`POST /v1/migrations:plan {"move":["b:50-60=a"]}`, 200, `"kind":"retract"`)
	c.wants(`POST /v1/tags {"name":"order"}`, 200, `"name":"order"`)
}
