// Package policy decides which subject may make which call, and how much of it.
//
// A policy is one YAML file. Each of its grants gives subjects some roles, in some rooms, for
// some tags, with quotas. A role is a set of calls. A call is allowed if one grant allows all
// of it: the call, each room that it concerns and the tag. Nothing is allowed otherwise, so
// a call that this package does not know is refused.
//
// The package knows names only. Package access checks the proof of a
// name: a certificate or a token.
//
// # Invariants
//
//  1. Every call of every service is in the table of calls. A test compares the table with
//     the descriptors.
//  2. A call that concerns all tags, such as ListTags, needs a grant for all tags; one that
//     concerns all rooms needs a grant for all rooms.
//  3. A Policy does not change once it is made. A subject's rights under it are computed
//     once, so that a check costs no allocation.
//  4. Quotas count in this process only.
package policy
