// Package imports reads the counters of other systems, and has March go on above them.
//
// A source is a table in a text: TSV as `mysql --batch` writes it, or CSV as `psql --csv` does.
// Reading yields rows; Merge makes of them one Counter for each name: the tag by
// internal/foreign, and the least ID that March may issue. That is the other system's next ID
// and a margin. The margin is for what the other system's servers and clients take after the
// table was read, while both run.
//
// Apply makes the tags that are missing, and skips ahead in those that may issue IDs below
// their counter. It only ever raises, so it can be repeated: with the same rows it changes
// nothing, and with later ones it raises what they raise.
//
// A row that is not what its system writes is Bad, by its place, its field and its value.
package imports
