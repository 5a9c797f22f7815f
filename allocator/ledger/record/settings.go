package record

import (
	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/store"
)

// ClusterSettings are the settings of a whole cluster. The zero value is in force
// until an operator sets them.
type ClusterSettings struct {
	kept
	// RequireJournal makes an instance that starts without its journal lease nothing until its
	// marks are confirmed: see unconfirmed.go.
	RequireJournal JournalRequired `json:"journal"`
	Nonce          string          `json:"nonce"` // new in each write
}

// JournalRequired is whether a journal is required. It is stored as a word.
type JournalRequired bool

// The words for JournalRequired.
const (
	journalOptional = "optional"
	journalRequired = "required"
)

// MarshalText returns the word.
func (r JournalRequired) MarshalText() ([]byte, error) {
	if r {
		return []byte(journalRequired), nil
	}
	return []byte(journalOptional), nil
}

// UnmarshalText reads the word. Its error is Internal.
func (r *JournalRequired) UnmarshalText(word []byte) error {
	if *r = string(word) == journalRequired; !*r && string(word) != journalOptional {
		return allocator.Errorf(allocator.Internal, "journal: %q; this program knows %s and %s", word,
			journalOptional, journalRequired)
	}
	return nil
}

// DecodeSettings reads the settings, or returns the zero value if there are none.
func DecodeSettings(found []store.KV) (s ClusterSettings, err error) {
	if len(found) > 0 {
		err = Decode(found[0], &s)
	}
	return s, err
}
