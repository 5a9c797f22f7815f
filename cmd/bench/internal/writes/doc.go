// Package writes simulates a cluster until its steps have settled, and counts its writes
// in etcd: the number of transactions and of bytes, for each kind of key.
//
// The simulation is the package's test, as only tests have the time of testing/synctest: an
// hour of a hundred instances takes a minute. Rooms, chains, leases and heartbeats are the real
// code. They run over the store in memory of package ledgertest, which fails on a transaction
// that no ledger may make. Two things are not real. There is no network: callers call the
// room's methods. And no journal is written, as journals do not touch etcd.
//
// Run builds that test and runs it with a Spec. Without a Spec, `go test` runs a small
// cluster and checks the number of its writes.
package writes
