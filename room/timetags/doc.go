// Package timetags issues the time-ordered IDs of a room's instance. It has a generator
// for each tag in memory, and one worker for each width, which all tags of that width
// share. Package worker leases the workers; package timeid makes the IDs.
//
// # Invariants
//
//  1. A generator issues only ticks that lie in the window of its worker as a whole.
//     Run renews windows, and extends all generators of the worker.
//  2. At most one generator of a tag is open, and a new one begins where the last one
//     ended, whatever its worker is. So the IDs of a tag only grow.
//  3. A worker is given back after all of its generators are closed.
//  4. Issuing an ID takes no lock except to look the tag up.
//
// A worker is taken when a caller first asks for a tag of its width. It is exchanged if
// a layout takes it out of the room's slice, or if another process has it.
package timetags
