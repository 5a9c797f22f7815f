package client_test

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/format"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/timeid"
	"github.com/march-id/march/api/client"
	"github.com/march-id/march/internal/testcluster"
	"github.com/march-id/march/room"
)

// texts creates a tag with a format.
func (c *cluster) texts(name allocator.Tag, description string, key format.Key) {
	c.Helper()
	f, err := format.Parse(description)
	if err != nil {
		c.Fatal(err)
	}
	c.Tag(func(s *record.TagSettings) {
		s.Format, s.Limit = description, record.FormatLimit(f)
		if key.Name() != "" {
			s.KeyCheck = key.CheckValue()
		}
	}, "test", name)
}

func opaqueKey(t *testing.T, b byte) format.Key {
	t.Helper()
	k, err := format.NewKey("orders-1", bytes.Repeat([]byte{b}, format.KeySize))
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// The client writes the texts of IDs that it issues, and reads them.
func TestTexts(t *testing.T) {
	c := newCluster(t)
	c.texts("order", "prefix(ORD-) | decimal(6) | luhn", format.Key{})
	c.texts("payment", "prefix(PAY-) | decimal(6) | luhn", format.Key{})
	c.texts("small", "decimal(1)", format.Key{})
	a := c.room("a", "a1")
	ids := newClient(t, client.Options{Addresses: []string{a.address}})
	ctx := t.Context()

	// Of a tag of which nothing is known yet, a room reads the text.
	if id, err := ids.ParseText(ctx, "order", "ORD-0000018"); id != 1 || err != nil {
		t.Errorf("got %d, %v", id, err)
	}
	order, err := ids.Tag("order")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := order.AppendText(nil, 1); allocator.KindOf(err) != allocator.Refused ||
		!strings.Contains(err.Error(), "not known yet") {
		t.Errorf("got %v", err)
	}
	for want := int64(1); want <= 60; want++ {
		text, id, err := ids.NextText(ctx, "order")
		if err != nil {
			t.Fatal(err)
		}
		again, err := order.AppendText([]byte("x"), id)
		if err != nil || string(again) != "x"+text || !strings.HasPrefix(text, "ORD-") {
			t.Errorf("got %s and %s, %v", text, again, err)
		}
		if read, err := ids.ParseText(ctx, "order", text); read != id || err != nil {
			t.Errorf("%s is %d, %v; want %d", text, read, err, id)
		}
	}
	for text, says := range map[string]string{
		"PAY-0000018": `tag order: text: "PAY-0000018" at column 1: another prefix`,
		"ORD-0000019": "the check character (luhn) does not match",
		"":            "tag order: text: ",
	} {
		if id, err := ids.ParseText(ctx, "order", text); allocator.KindOf(err) != allocator.Invalid ||
			!strings.Contains(err.Error(), says) {
			t.Errorf("%q: got %d, %v", text, id, err)
		}
	}
	if _, _, err := ids.NextText(ctx, "plain"); allocator.KindOf(err) != allocator.Refused ||
		!strings.Contains(err.Error(), "tag plain: the tag has no format") {
		t.Errorf("got %v", err)
	}
	if _, err := ids.ParseText(ctx, "plain", "1"); allocator.KindOf(err) != allocator.Refused {
		t.Errorf("got %v", err)
	}
	// The end of the domain.
	for want := 1; want <= 9; want++ {
		if text, id, err := ids.NextText(ctx, "small"); err != nil || text != string(rune('0'+id)) {
			t.Errorf("got %s for %d, %v", text, id, err)
		}
	}
	if text, id, err := ids.NextText(ctx, "small"); allocator.KindOf(err) != allocator.Exhausted ||
		text != "" || id != 0 {
		t.Errorf("got %s for %d, %v", text, id, err)
	}
	buffer := make([]byte, 0, 64)
	if n := allocations(func() { _, _, _ = order.AppendNext(ctx, buffer) }); n > 0 {
		t.Errorf("%v allocations for a text", n)
	}
}

// A client with the key writes opaque texts itself; a room does for one without it. A
// client with another key is refused.
func TestOpaqueTexts(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t)
		right, wrong := opaqueKey(t, 1), opaqueKey(t, 2)
		c.texts("order", "prefix(A) | opaque(orders-1, 10^6) | decimal(6)", right)
		locked, unlocked := c.Room("a", "a1", nil), c.Room("a", "a2", func(cfg *room.Config) {
			cfg.OpaqueKeys = []format.Key{right}
		})
		f, err := format.Parse("prefix(A) | opaque(orders-1, 10^6) | decimal(6)", right)
		if err != nil {
			t.Fatal(err)
		}
		options := func(address string, keys ...format.Key) client.Options {
			return client.Options{Addresses: []string{address}, OpaqueKeys: keys, MinStep: 10, MaxStep: 100}
		}
		ctx := t.Context()
		for name, ids := range map[string]*client.Client{
			"with the key":    newClient(t, options(locked.Address, right)),
			"without the key": newClient(t, options(unlocked.Address)),
		} {
			for range 3 {
				text, id, err := ids.NextText(ctx, "order")
				want, _ := f.Append(nil, format.Value{ID: id})
				if err != nil || text != string(want) {
					t.Errorf("%s: got %s for %d, %v; want %s", name, text, id, err, want)
				}
				if read, err := ids.ParseText(ctx, "order", text); read != id || err != nil {
					t.Errorf("%s: %s is %d, %v; want %d", name, text, read, err, id)
				}
			}
		}
		for name, ids := range map[string]*client.Client{
			"the key orders-1 here is another than the tag's": newClient(t, options(unlocked.Address, wrong)),
			"need the key orders-1, which is not here":        newClient(t, options(locked.Address)),
		} {
			for range 2 {
				if text, id, err := ids.NextText(ctx, "order"); allocator.KindOf(err) != allocator.Refused ||
					!strings.Contains(err.Error(), name) {
					t.Errorf("%s: got %s for %d, %v", name, text, id, err)
				}
				if id, err := ids.ParseText(ctx, "order", "A000001"); allocator.KindOf(err) != allocator.Refused ||
					!strings.Contains(err.Error(), name) {
					t.Errorf("%s: got %d, %v", name, id, err)
				}
			}
			if _, err := ids.Next(ctx, "order"); err != nil { // the number needs no key
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}

// timedTexts: time-ordered IDs have texts, too.
func timedTexts(t *testing.T, c *cluster) {
	c.Tag(func(s *record.TagSettings) {
		tag := record.NewTimeTag(cosid)
		s.Time, s.Format = &tag, "friendly(cosid, UTC)"
	}, "test", "event")
	c.timed(cosid, timeid.Wait, "plain")
	a := c.Room("a", "a1", func(cfg *room.Config) { cfg.GRPC = testcluster.Listen(c, "") })
	ids := newClient(t, client.Options{Addresses: []string{a.Address}})
	for range 3 {
		text, id, err := ids.NextText(t.Context(), "event")
		if err != nil || !strings.HasPrefix(text, time.Now().UTC().Format("2006")) {
			t.Fatalf("got %s for %d, %v", text, id, err)
		}
		if read, err := ids.ParseText(t.Context(), "event", text); read != id || err != nil {
			t.Errorf("%s is %d, %v; want %d", text, read, err, id)
		}
	}
	if _, _, err := ids.NextText(t.Context(), "plain"); allocator.KindOf(err) != allocator.Refused {
		t.Errorf("got %v", err)
	}
}

// The client issues strings of 80 bits in its own process, and asks a room for them where it
// has no window. It refuses numbers.
func timedWide(t *testing.T, c *cluster) {
	c.Tag(func(s *record.TagSettings) {
		tag := record.NewTimeTag(timeid.Wide)
		s.Time, s.Format = &tag, "sortable(62)"
	}, "test", "event")
	a := c.Room("a", "a1", func(cfg *room.Config) { cfg.GRPC = testcluster.Listen(c, "") })
	ids := newClient(t, client.Options{Addresses: []string{a.Address}})
	event, err := ids.Tag("event")
	if err != nil {
		t.Fatal(err)
	}
	if err := event.Warm(t.Context()); err != nil {
		t.Fatal(err)
	}
	f, err := format.Parse("sortable(62)")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	last, buffer := "", []byte("x")
	began := time.Now().UnixMilli()
	take := func() timeid.Parts {
		t.Helper()
		b, id, err := event.AppendNext(t.Context(), buffer)
		if err != nil || id != 0 || len(b) != 16 || b[0] != 'x' {
			t.Fatalf("got %s for %d, %v", b, id, err)
		}
		text := string(b[1:])
		v, err := f.ParseText(text)
		if err != nil || seen[text] || text <= last || v.Parts.Worker >= 1<<19 || v.Parts.Time < began-1 ||
			v.Parts.Time > time.Now().UnixMilli() {
			t.Fatalf("got %s after %s: %+v, %v, seen before: %v", text, last, v.Parts, err, seen[text])
		}
		seen[text], last = true, text
		return v.Parts
	}
	own := take()
	for range 10_000 {
		if p := take(); p.Worker != own.Worker {
			t.Fatalf("worker %d after %d", p.Worker, own.Worker)
		}
	}
	if own.Worker < 1<<18 {
		t.Errorf("worker %d is none for callers: the client did not issue the texts itself", own.Worker)
	}
	if text, id, err := ids.NextText(t.Context(), "event"); err != nil || id != 0 || len(text) != 15 {
		t.Errorf("got %s for %d, %v", text, id, err)
	}
	refusals := map[string]error{}
	_, refusals["Next"] = event.Next(t.Context())
	_, refusals["NextN"] = event.NextN(t.Context(), 5, nil)
	_, refusals["NextMany"] = ids.NextMany(t.Context(), client.TagCount{Tag: "event", Count: 1})
	_, refusals["ParseText"] = ids.ParseText(t.Context(), "event", last)
	for call, err := range refusals {
		if allocator.KindOf(err) != allocator.Refused || !strings.Contains(err.Error(), "exist only as texts") {
			t.Errorf("%s: got %v", call, err)
		}
	}
	if id, ok := event.TryNext(); ok {
		t.Errorf("got %d", id)
	}
}
