// Package rest serves rooms and consoles over HTTP/JSON, beside gRPC. Both use the same
// implementations of the services.
//
// # Life of a request
//
//  1. The OpenAPI 3 document defines the routes, their methods, parameters and bodies. It
//     is generated from the protos and from api/march/v1/http.yaml, and GET
//     /v1/openapi.json answers it. Anything that it does not name is an error and not
//     ignored (check.go): an unknown parameter, a parameter that is given twice, a
//     body that is no JSON object.
//  2. grpc-gateway, in this process, turns the request into a message, calls the
//     service, and turns the answer back. Such a call does not pass through the gRPC
//     server and its interceptors, so guard.go does their work: it words errors as
//     package api defines them, names the caller for the audit, bounds the body and
//     the time, and recovers from panics.
//  3. Two routes do not use the gateway: POST /v1/tags/{tag}/next, for speed
//     (next.go), and the watch of a migration, as the gateway has no streams in
//     process (watch.go).
//
// # Invariants
//
//  1. A request that may issue IDs or change anything is never a GET, and every answer
//     says Cache-Control: no-store. So no proxy or cache repeats or keeps an ID.
//  2. Such a request is refused if a browser sends it for a page of another origin
//     (http.CrossOriginProtection). No CORS header is ever sent. A page whose own name
//     leads to this machine is refused, too: see package serve.
//  3. Every error is a JSON object of the form march.v1.Error, except if net/http
//     refuses a request before it is read (a malformed line or header).
//  4. Integers of 64 bits are JSON strings, as everywhere in March.
package rest
