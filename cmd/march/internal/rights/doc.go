// Package rights has the settings and commands about which caller may do what: the flags of a
// server's policy and identities, `march policy` and `march token`.
package rights
