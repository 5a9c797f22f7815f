// Package rest serves rooms and consoles over HTTP/JSON, beside gRPC and by the
// same implementations of the services.
//
// # Life of a request
//
//  1. The routes, their methods, parameters and bodies are those of the OpenAPI
//     document, which is generated from the protos and from
//     api/march/v1/http.yaml, and which GET /v1/openapi.json answers. Nothing
//     that it does not name is taken (check.go): an unknown parameter, one given
//     twice, a body that is no JSON object are errors, not ignored.
//  2. grpc-gateway, in this process, turns the request into a message, calls the
//     service, and turns the answer back. gRPC's interceptors do not see such a
//     call, so what they and the gRPC server do is done here by hand (guard.go):
//     errors as package api has them, who calls (for the audit), a bound on the
//     body and on the time, panics.
//  3. Two routes pass by the gateway: POST /v1/tags/{tag}/next for speed
//     (next.go), and the watch of a migration, since the gateway has no streams
//     in process (watch.go).
//
// # Invariants
//
//  1. A request that may issue IDs or change anything is no GET, and every answer
//     says Cache-Control: no-store: nothing on the way repeats or remembers an ID.
//  2. A browser does not send such a request for a page of another origin
//     (http.CrossOriginProtection). No CORS header is ever sent. That a page's
//     own name leads here does not help it: see package server.
//  3. Every error is a JSON object as march.v1.Error has it, but for what net/http
//     refuses before there is a request (a malformed line or header).
//  4. Integers of 64 bits are JSON strings, as everywhere in March.
package rest
