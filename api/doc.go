// Package api is shared by rooms, consoles and their callers. Folder march/v1 has the
// protos of march.v1 and the Go code generated from them. This package converts between
// that code and package allocator.
//
// # Errors
//
// A handler returns Go errors with an allocator.Kind. A caller gets Go errors with the
// same Kind. Neither knows gRPC's codes:
//
//  1. The server's interceptors turn the error into a status (ToStatus): the
//     Kind's code, the error's message, and an ErrorInfo whose reason is the
//     Kind. Several Kinds share a code; the reason tells them apart.
//  2. The client's interceptors turn the status back (FromStatus).
//
// The table of Kinds and codes is in errors.go and nowhere else.
//
// # Values
//
// Values from the network are checked when they become values of package allocator, and
// trusted from there on. A value of an enum has a word, by which commands, pages and what
// is stored name it. Both are in convert.go.
package api
