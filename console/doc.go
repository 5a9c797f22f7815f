// Package console is the operators' service: it shows and changes layouts and
// tags, and lists rooms and instances, over gRPC.
//
// A console keeps nothing of its own. Every call reads or changes etcd through
// package ledger, so all consoles of a cluster answer alike, and one that dies
// takes nothing with it. What only an instance knows (its chains) it asks the
// instance.
//
// Everything from outside is checked here, at the edge: the ledger is given
// parsed names and valid numbers.
package console
