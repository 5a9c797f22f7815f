package record

import (
	"github.com/march-id/march/allocator/ledger/store"
)

// ClusterSettings are the settings of a whole cluster. The zero value is in force
// until an operator sets them.
type ClusterSettings struct {
	// RequireJournal has an instance that starts without its journal lease nothing
	// until its marks are confirmed: see unconfirmed.go.
	RequireJournal bool
}

// The values of settingsValue's journal.
const (
	journalOptional = "optional"
	journalRequired = "required"
)

// DecodeSettings reads the settings; there may be none.
func (k Keys) DecodeSettings(found []store.KV) (s ClusterSettings, nonce string, err error) {
	if len(found) == 0 {
		return s, "", nil
	}
	var v settingsValue
	if err := Decode(found[0], &v); err != nil {
		return s, "", err
	}
	if v.Journal != journalOptional && v.Journal != journalRequired {
		return s, "", Damaged(found[0].Key, "journal: %q; this program knows %s and %s", v.Journal, journalOptional, journalRequired)
	}
	return ClusterSettings{RequireJournal: v.Journal == journalRequired}, v.Nonce, nil
}

// Encode writes the settings over what there was, if anything.
func (s ClusterSettings) Encode(nonce string, was store.KV) []byte {
	var v settingsValue
	_ = Decode(was, &v) // it was read before; what is not known of it is kept
	v.Journal, v.Nonce = journalOptional, nonce
	if s.RequireJournal {
		v.Journal = journalRequired
	}
	return Encode(&v)
}
