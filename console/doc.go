// Package console is the operators' service: it shows and changes layouts and
// tags, lists rooms and instances, and plans, drives and undoes migrations,
// over gRPC, over HTTP/JSON (package rest), and as pages for a browser (folder
// web).
//
// A console keeps nothing that it could not read again. Every call reads or changes
// etcd through package ledger. So all consoles of a cluster answer alike, and no data is
// lost when one dies. A console asks an instance for the things that only the instance
// knows: its chains and its rates. While pages or commands ask for them, a console has
// three things in memory:
//
//   - The rates of the last two minutes, which instances remember too (overview.go).
//   - All tags as they were a moment ago, to search and sort them (search.go).
//   - The costs of the plans that are shown (counts.go).
//
// The console checks everything from outside here, at the edge: it gives the ledger
// parsed names and valid numbers.
//
// # Migrations
//
//  1. Package plan finds the moves from a layout to a target. Each residue that a room
//     gains by a move was held by no other room before the move, unless the move is a
//     switch.
//  2. drive.go makes the moves. Every console tries each move, and one succeeds: a
//     move changes layout and migration in one transaction that compares both.
//  3. Between two moves a console waits for every registered instance that could still
//     issue residues which the next move gives to another room (waiting.go).
//  4. silence.go measures how long instances have been silent. Each console does that
//     for itself, in memory, on its monotonic clock.
package console
