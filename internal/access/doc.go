// Package access finds out which subject makes a call, and refuses what its policy does not
// allow.
//
// A subject is proven by a client certificate that TLS has verified, or by a bearer token:
// one of a file that holds only hashes, or a JWT of an OpenID Connect issuer. A caller that
// gives none of them is anonymous. Package policy says what each may do.
//
// A Gate guards every way into a server: interceptors guard gRPC, and the handlers
// of HTTP and the pages, which call a service of their own process through a Conn; IDs guards
// the hot route of HTTP, and Take the doors for other systems' clients. A nil Gate is a server
// without a policy: it lets everything pass.
//
// # Invariants
//
//  1. A caller that gives a token is never taken for another subject because the token is
//     bad: the call is Unauthenticated.
//  2. A call without a rule is refused.
//  3. A file that is broken when it is read again changes nothing: the Gate goes on with
//     the last good one, and says so in the log, a metric and a problem.
//  4. No token is kept, logged or told: the Gate remembers hashes.
//  5. The work that callers without a right can make the Gate do is bounded: verifications by
//     address, requests to the issuer, log lines, audit entries, remembered tokens.
package access
