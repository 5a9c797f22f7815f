// Package console is the operators' service: it shows and changes layouts and
// tags, lists rooms and instances, and plans, drives and undoes migrations,
// over gRPC, over HTTP/JSON (package rest), and as pages for a browser (folder
// web).
//
// A console keeps nothing that it could not read again. Every call reads or
// changes etcd through package ledger, so all consoles of a cluster answer alike,
// and one that dies takes nothing with it. What only an instance knows (its
// chains, its rates) it asks the instance. In memory, while somebody looks, it has
// the rates of the last two minutes, which instances remember too (overview.go),
// and all tags as they were a moment ago, to search and sort them (search.go).
//
// Everything from outside is checked here, at the edge: the ledger is given
// parsed names and valid numbers.
//
// # Migrations
//
//  1. plan.go and its neighbours are pure: from a layout and a target to moves.
//     But for a switch, which says so, each residue that a room gains by a move
//     was held by no other room before it.
//  2. drive.go has the effects. One of the consoles drives (ledger.Driver), but
//     nothing rests on there being one: a move changes layout and migration in
//     one transaction that compares both.
//  3. Between two moves the driver waits for every registered instance that
//     could still issue residues which the next move gives to another room.
package console
