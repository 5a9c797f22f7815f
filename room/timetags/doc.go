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
//  4. A caller that is issued an ID takes no lock but to look the tag up.
//
// A worker is taken when the first tag of its width is asked for. It is exchanged where
// a layout takes it out of the room's slice, and where another process has it.
package timetags
