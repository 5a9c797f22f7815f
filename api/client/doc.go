// Package client issues unique IDs inside a Go program. It leases segments of IDs from
// a room before they are needed, and issues them from memory with the same code as the
// room (package allocator). An ID costs nanoseconds. Callers do not notice a room that
// restarts or is away while the reserve lasts.
//
// # Use
//
//	ids, err := client.New(ctx, client.Options{Addresses: []string{"127.0.0.1:7010"}})
//	...
//	defer ids.Close()
//	id, err := ids.Next(ctx, "order")
//
// In a loop that takes many IDs, keep the Tag, so that the compiler can inline TryNext:
//
//	order, err := ids.Tag("order")
//	...
//	id, ok := order.TryNext()
//	if !ok {
//		id, err = order.Next(ctx)
//	}
//
// NextMany takes IDs of several tags at once:
//
//	taken, err := ids.NextMany(ctx, client.TagCount{Tag: "order", Count: 1}, client.TagCount{Tag: "item", Count: 5})
//
// NextRun takes consecutive IDs, of which a caller stores only the first:
//
//	run, err := ids.NextRun(ctx, "order", 10) // run.First to run.First+9
//
// Of many IDs NextN returns the runs:
//
//	runs, err := ids.NextN(ctx, "order", 1000)
//	...
//	for id := range runs.IDs() {
//
// # Tests and metrics
//
// A service that takes an [Issuer] instead of a *Client can be tested with package clienttest, which asks no room, and
// with the module github.com/march-id/march/marchtest, which runs a cluster in the test's process. Errors have the
// kinds that stand here: errors.Is(err, client.Exhausted). Packages clientprom and clientotel show metrics, and
// Options.Slog gets what the client logs.
//
// # Finding the room
//
// With Options.Discover a client asks a console where the instances of its room are, and again
// every 10 seconds, and at once when no room answers. So a room may move, grow or be drained
// without a new deployment of its callers:
//
//	ids, err := client.New(ctx, client.Options{Discover: &client.Discover{
//		Consoles: []string{"127.0.0.1:7001"}, Room: "eu-1", Fallback: []string{"us-1"},
//	}})
//
// Such a client can tell of which room an ID is, too: RoomOf and Decode work on the layout that it keeps.
//
// # TLS
//
// Servers with certificates need Options.TLS, from [tlsfiles.Open]. Its files are followed while
// the client runs, so a renewed certificate needs no restart. Options.TokenFile has a token to
// give:
//
//	files, err := tlsfiles.Open(tlsfiles.Config{Flags: "tls", CA: "ca.pem", Cert: "shop.pem", Key: "shop-key.pem"})
//	...
//	ids, err := client.New(ctx, client.Options{Addresses: []string{"eu-1.example.net:7010"}, TLS: files})
//
// # Life of a segment
//
//  1. A tag's chain holds less than its target: the IDs that the recent peak rate takes
//     in the reserve's time. The client asks one instance of the room. If that one does
//     not answer, it asks the next. If none answers, it asks other rooms, if they are
//     allowed.
//  2. The answer is a segment and the time for which it may be used. The time counts
//     from the sending of the request, by the monotonic clock and by the wall clock,
//     whichever runs ahead. So the time of a suspended machine counts, too. If an
//     answer is lost, its IDs are a gap: the client does not ask for them again, and
//     issues no ID that was not answered.
//  3. The client issues the segment's IDs. It replaces a segment that has a third of its
//     time left, if the tag is in use. It leases the fresh segment first, so that no
//     caller waits. It drops a segment at its end, whether a room answers or not.
//  4. A segment of a newer layout, of any tag, shows that the layout changed. The new
//     layout keeps a segment if the boundary is the same and the new range contains the
//     segment's range. Such a segment stays. The client replaces every other segment:
//     it leases a fresh one first, then drops the old one. A client that leases nothing
//     learns of a change late, at most by the segments' time to live.
//  5. Close drops the IDs that are left.
//
// # Life of a window
//
// The first answer of a room says of which kind a tag is. The IDs of a tag of kind time
// are time, worker and sequence (package timeid), and are issued in a window of time:
//
//  1. The client asks the room for a worker of the tag's width. The answer has one for a
//     window: 3 seconds for a new client, and up to the room's --hold (10 minutes) for one
//     that has run for a while. The worker serves all of the client's tags of that width.
//  2. The client issues an ID only of a tick that lies in the window as a whole, whatever
//     its clock does. It needs no room for that. If the clock goes back, the tag's settings
//     decide: wait, go on ahead of the clock, or fail.
//  3. When half of the window is over, the client asks the instance that lent the worker
//     for more of it, if one of the tags was used. Where the instance does not let the
//     worker go on (a layout took the worker from the room, the instance began anew), the
//     answer has another one. If the instance does not answer, another instance lends
//     another worker. The client closes the generators of the old worker first.
//  4. If no window is free, or the clock is outside the window, the room issues each ID,
//     as one of Next and NextBatch. The client asks for a window again after a second, and
//     then less and less often, up to once a minute.
//  5. Close ends all generators. The window ends by itself.
//
// # Texts
//
// A tag may have a format (package format), which each answer of a room has with it. So
// AppendNext writes the text of an ID in the process, and ParseText reads one, without a
// room. Opaque texts need the tag's key: Options.OpaqueKeys. Without it a room that has
// the key writes and reads them, one call for each ID.
//
// # Invariants
//
//  1. Every ID that the client issues was leased to it by an answer that arrived, and
//     is issued once.
//  2. All goroutines of the client have ended when Close returns. Their number does not
//     grow with the number of tags.
//  3. A segment past its end is dropped within the time that the process takes to
//     run a timer. Under Options.Strict no call returns an ID that was past its
//     end when it was taken or checked.
//  4. A time-ordered ID that the client issues itself has the worker that an answer
//     named, and a tick of that answer's window. A tag has one generator at a time.
//
// # What it does not do
//
// The client does not promise that the IDs of a tag only grow. The IDs of one segment
// grow, and those of one instance. But each instance of a room has segments of its own,
// and a client that goes from one instance to another may get lower IDs than before.
// Uniqueness never depends on the order.
//
// A client and its clone (a copy of a process's memory) issue the same IDs, until one of
// them asks the room for more: then the room refuses the other's nonce, and gives it
// another worker.
//
// The client does not return IDs that it did not issue: a program that ends leaves a gap
// of up to twice the reserve.
package client
