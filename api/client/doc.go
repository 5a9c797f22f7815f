// Package client issues unique IDs inside a Go program. It leases segments of
// IDs from a room ahead of need and issues them from memory, by the very code
// that the room does it with (package allocator): an ID costs nanoseconds, and a
// room that restarts or is away is not noticed while the reserve lasts.
//
// # Use
//
//	ids, err := client.New(ctx, client.Options{Addresses: []string{"127.0.0.1:7010"}})
//	...
//	defer ids.Close()
//	id, err := ids.Next(ctx, "order")
//
// Where IDs are taken often, keep the Tag and let the compiler put its fast half
// into the loop:
//
//	order, err := ids.Tag("order")
//	...
//	id, ok := order.TryNext()
//	if !ok {
//		id, err = order.Next(ctx)
//	}
//
// # Life of a segment
//
//  1. A tag's chain holds less than its target (the reserve's time at the recent
//     peak rate). It asks one instance of the room; where that does not answer,
//     the next; where none does and other rooms are allowed, those.
//  2. The answer is a segment and for how long it may be used, counted from the
//     sending of the request by the monotonic and by the wall clock, whichever
//     runs ahead: so a suspended machine counts, too. An answer that was lost is
//     a gap: nothing is asked for twice, nothing is issued that was not answered.
//  3. Its IDs are issued. What has a third of its time left is replaced, where
//     the tag is in use: fresh first, so that nobody waits. What reaches its end
//     is dropped, whether a room answers or not.
//  4. A segment of a newer layout, of any tag, tells that the layout changed: what
//     is held of older ones is replaced, fresh first, then dropped. A client that
//     leases nothing learns of it late; the time to live bounds that.
//  5. Close drops what is left.
//
// # Invariants
//
//  1. Every ID it issues was leased to this client by an answer that arrived, and
//     is issued once.
//  2. No goroutine but the client's own, all ended when Close returns; their
//     number does not grow with tags.
//  3. A segment past its end is dropped within the time that the process takes to
//     run a timer. Under Options.Strict no call returns an ID that was past its
//     end when it was taken or checked.
//
// # What it does not do
//
// It does not promise that the IDs of a tag only grow. Those of one segment do,
// and those of one instance; but each instance of a room has segments of its
// own, and a client that goes from one to another may get lower ones than
// before. Uniqueness never depends on it.
//
// It does not hand back what it did not issue: a program that ends leaves a gap
// of up to twice the reserve.
package client
