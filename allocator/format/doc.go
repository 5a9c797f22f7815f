// Package format maps IDs to texts and back without loss: ORD-0Ed8W7BGa4e for
// 198064472869310464. It does no input or output, reads no clock and needs the standard
// library only, so every client formats and parses by itself.
//
// # Descriptions
//
// A format is described by its parts, in the order in which they stand in a text:
//
//	prefix(ORD-) | radix62(11)
//	prefix(S) | date(yyMMdd) | period(day, 9) | decimal(9) | damm
//	opaque(orders-1, 10^12) | decimal(12) | luhn
//
// Left of the number:
//
//	prefix(TEXT)             a text, such as ORD- or "A B"; it brings no delimiter of its own
//	date(PATTERN, DELIMITER) the first day of the tag's period, by a pattern of yyyy or yy, MM, dd
//	                         and separators; the delimiter is - if it is left out, "" is none
//	group(PATTERN, DELIMITER)  the same, for texts of CosId: its groups are named after periods
//
// Permutations of the number, applied from left to right before it is written:
//
//	period(day, DIGITS)      the ID is period * 10^DIGITS + n: n goes on, the period goes to date
//	                         and group; also of a month or a year
//	reverse(BITS)            the bits in reverse order, 63 if left out, as Spanner's sequences
//	opaque(KEY, SIZE, TWEAK) a permutation of the numbers below SIZE (10^N, 2^N or a number) that
//	                         only holders of the key can invert; a tweak, such as a tag's name,
//	                         makes another permutation
//
// The number, exactly one. DIGITS is a fixed width with zeros in front; without it there
// are none:
//
//	decimal(DIGITS)  radix62(DIGITS)  radix36(DIGITS)  crockford(DIGITS)
//	friendly(PRESET, ZONE, ...)  CosId's friendly string of a time-ordered ID:
//	                         20210623131730192-1-0. The zone is UTC or a fixed offset such as
//	                         +08:00. padded writes worker and sequence in full width. In place of
//	                         a preset: friendly(41/10/12, UTC, epoch=1577203200000, unit=1ms,
//	                         order=worker-middle)
//	sortable(62)             CosId's string of an ID of 80 bits, of time, worker and sequence;
//	sortable(36)             62 needs a case-sensitive, bytewise order. friendly has these IDs as
//	                         the preset cosid-string
//
// A check character right after the number, of the digits of the dates and the number:
//
//	luhn, damm               of decimal
//	mod37-36                 ISO 7064, of decimal and radix36
//	crockford-check          of crockford, without dates
//
// And last:
//
//	suffix(TEXT)
//
// # Invariants
//
//  1. A format is a bijection between its Domain and its texts: ParseText returns the value
//     that Append had, and two values never have one text. Parse refuses a description for
//     which that would not hold.
//  2. ParseText reads what Append writes, and refuses everything else. The only exception
//     are the corrections that Crockford's definition has.
//  3. String returns a description that Parse reads as the same format.
//  4. Texts of one format with different keys, or with different tweaks, do meet: each is a
//     permutation of one domain. So a new key needs texts of its own: another prefix, say.
//
// # What opaque hides
//
// An opaque text hides how many IDs there are, which came first, and which room issued it.
// It hides no ID from a holder of the key, and texts do not sort as their IDs.
//
// # Errors
//
// *SyntaxError of a description, with the place; *ValueError and *TextError of what is
// outside of the domain, with what is allowed; *KeyError of a format without its key.
package format
