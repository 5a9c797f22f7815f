// Package api is what a room and a console have in common with those who call
// them: the protos of march.v1 and their Go (folder march/v1), and here the
// conversions between them and package allocator.
//
// # Errors
//
// A handler returns Go errors with an allocator.Kind, a caller gets Go errors
// with the same Kind, and neither knows of gRPC's codes:
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
// What comes off a wire is checked where it becomes a value of package
// allocator (convert.go), and trusted from there on.
package api
