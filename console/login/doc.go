// Package login lets operators log in to the console's page, by a token or at an OpenID
// Connect issuer.
//
// A login ends in a cookie that the console encrypts and signs: it has what the login proved,
// and when it ends. So any console with the same key can answer, and none keeps a list but of
// sessions that were logged out. The
// cookie belongs to one host name, goes only over TLS (or to this machine), is not for
// scripts, and no form of another site sends it.
//
// # Invariants
//
//  1. The cookie has no token of March: a login by a token of the file has the token's hash, so that it
//     ends when the token is taken out of the file.
//     A login at the issuer has its access token, so that consoles can ask whether the login still holds.
//  2. Where a browser is sent never comes from the Host header: paths of this console only,
//     and the issuer goes back to the address that the operator set.
//  3. A login at the issuer ends in the browser that began it: state, nonce and the PKCE
//     verifier are in a cookie of that browser.
package login
