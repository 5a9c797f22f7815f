// Package tlsfiles makes TLS settings from files in PEM: of a CA, a certificate and its key.
// Servers, clients and the links between them use it.
//
// The files are read again at the first handshake that comes [Interval] or more after they
// were last read. There is no goroutine, so there is nothing to close. Contents are compared,
// not times or names: that finds every change on every file system, also where Kubernetes
// swaps a folder.
//
// # Invariants
//
//  1. Files that cannot be used change nothing: the last good ones stay in force, and the log
//     says so once for each reason, when the second reading finds them so, too: a key may be
//     written before its certificate.
//  2. Certificate, key and CAs change together, in one step.
//  3. Nothing verified under old CAs counts under new ones: sessions cannot be resumed.
//     A connection that is open stays open.
//  4. A client always verifies its server: the chain, and either the host that it calls or
//     the names that it expects (see [Instance]).
package tlsfiles
