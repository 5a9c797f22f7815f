package clienttest_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/march-id/march/api/client"
	"github.com/march-id/march/api/client/clienttest"
)

// orders is a service that takes its IDs from whoever issues them.
type orders struct{ ids client.Issuer }

func (o orders) create(ctx context.Context) (string, error) {
	id, err := o.ids.Next(ctx, "order")
	if errors.Is(err, client.Unavailable) {
		return "", fmt.Errorf("try again later: %w", err)
	}
	return fmt.Sprintf("order %d", id), err
}

func Example() {
	ids := clienttest.New(1000, 500, 1000) // a room with the upper half
	service := orders{ids}
	fmt.Println(service.create(context.Background()))
	ids.Fail("order", client.Unavailable)
	fmt.Println(service.create(context.Background()))
	// Output:
	// order 500 <nil>
	//  try again later: unavailable
}

// The IDs are those of the range, each comes once, and faults are of the kind that a test asks for.
func TestIssuer(t *testing.T) {
	t.Parallel()
	ctx, ids := t.Context(), clienttest.New(100, 0, 50)
	ids.Tags("order", "few", "coded")
	runs, err := ids.NextN(ctx, "order", 60)
	all := slices.Collect(runs.IDs())
	if err != nil || len(all) != 60 || all[0] != 1 || all[48] != 49 || all[49] != 100 {
		t.Errorf("%v, %v", all, err)
	}
	if id, err := ids.Next(ctx, "order"); err != nil || id != 111 {
		t.Errorf("%d, %v", id, err)
	}
	ids.Limit("few", 104)
	if s, err := ids.Lease(ctx, "few", 1000); err != nil || s.Count != 53 || s.Last() != 103 || ids.Taken("few") != 53 {
		t.Errorf("%v, %v", s, err)
	}
	wants := func(want client.Kind, err error) {
		t.Helper()
		if !errors.Is(err, want) || client.KindOf(err) != want {
			t.Errorf("%v, want %v", err, want)
		}
	}
	_, err = ids.Next(ctx, "few")
	wants(client.Exhausted, err)
	if limit, ok := errors.AsType[*client.LimitError](err); !ok || limit.Limit != 104 {
		t.Errorf("%v", err)
	}
	_, err = ids.Next(ctx, "other")
	wants(client.NotFound, err)
	_, err = ids.Next(ctx, "No tag")
	wants(client.Invalid, err)
	_, err = ids.NextN(ctx, "order", 0)
	wants(client.Invalid, err)
	_, _, err = ids.NextText(ctx, "order")
	wants(client.Refused, err)
	wants(client.Invalid, ids.Format("coded", "no format"))
	if err := ids.Format("coded", "prefix(ORD-) | radix62(11)"); err != nil {
		t.Error(err)
	}
	if text, id, err := ids.NextText(ctx, "coded"); err != nil || text != "ORD-00000000001" || id != 1 {
		t.Errorf("%s, %d, %v", text, id, err)
	}
	ids.FailAll(client.WentBack)
	_, err = ids.Next(ctx, "order")
	wants(client.WentBack, err)
	ids.FailAll(nil)
	ended, end := context.WithCancel(ctx)
	end()
	_, err = ids.Next(ended, "order")
	wants(client.Unavailable, err)
	if id, err := ids.Next(ctx, "order"); err != nil || id != 112 {
		t.Errorf("%d, %v", id, err)
	}
}

// What a test says of a tag does not make it.
func TestNoTag(t *testing.T) {
	t.Parallel()
	ctx, ids := t.Context(), clienttest.New(1, 0, 1)
	ids.Tags("order")
	ids.Fail("none", client.Unavailable)
	ids.Fail("none", nil)
	ids.Limit("none", 100)
	if err := ids.Format("none", "prefix(ORD-) | radix62(11)"); err != nil || ids.Taken("none") != 0 {
		t.Errorf("%v, %d", err, ids.Taken("none"))
	}
	if _, err := ids.Next(ctx, "none"); !errors.Is(err, client.NotFound) {
		t.Errorf("%v", err)
	}
	ids.Tags("none")
	if _, err := ids.NextN(ctx, "none", 100); !errors.Is(err, client.Exhausted) {
		t.Errorf("%v", err)
	}
}

// The bounds of counts are those of the client.
func TestCounts(t *testing.T) {
	t.Parallel()
	ctx, ids := t.Context(), clienttest.New(1, 0, 1)
	if runs, err := ids.NextN(ctx, "order", 1<<40); err != nil || len(runs) != 1 || runs[0].Count != 1<<40 {
		t.Errorf("%v, %v", runs, err)
	}
	if _, err := ids.NextN(ctx, "order", 1<<40+1); !errors.Is(err, client.Invalid) {
		t.Errorf("%v", err)
	}
	if _, err := ids.Lease(ctx, "order", 1_000_000_001); !errors.Is(err, client.Invalid) {
		t.Errorf("%v", err)
	}
}
