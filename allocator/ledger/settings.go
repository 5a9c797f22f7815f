package ledger

import (
	"context"

	"github.com/march-id/march/allocator"
)

// ClusterSettings are the settings of a whole cluster. The zero value is that of
// a cluster of which nobody set any.
type ClusterSettings struct {
	// RequireJournal has an instance that starts without its journal lease nothing
	// until its marks are confirmed: see vouch.go.
	RequireJournal bool
}

// What settingsValue says of the journal.
const (
	journalOptional = "optional"
	journalRequired = "required"
)

// decodeSettings reads the settings; there may be none.
func (l *Ledger) decodeSettings(found []KV) (s ClusterSettings, nonce string, err error) {
	if len(found) == 0 {
		return s, "", nil
	}
	var v settingsValue
	if err := decode(found[0], &v); err != nil {
		return s, "", err
	}
	if v.Journal != journalOptional && v.Journal != journalRequired {
		return s, "", allocator.Errorf(allocator.Internal, "key %s: journal: %q; this program knows %s and %s", found[0].Key, v.Journal, journalOptional, journalRequired)
	}
	return ClusterSettings{RequireJournal: v.Journal == journalRequired}, v.Nonce, nil
}

func (s ClusterSettings) encode(nonce string) []byte {
	v := &settingsValue{Journal: journalOptional, Nonce: nonce}
	if s.RequireJournal {
		v.Journal = journalRequired
	}
	return encode(v)
}

// Settings returns the cluster's settings. Its errors are attach's, Unavailable,
// and Internal where they cannot be read.
func (l *Ledger) Settings(ctx context.Context) (ClusterSettings, error) {
	s, _, _, err := l.settings(ctx)
	return s, err
}

func (l *Ledger) settings(ctx context.Context) (s ClusterSettings, nonce string, kv KV, err error) {
	if err := l.attach(ctx); err != nil {
		return s, "", kv, err
	}
	answer, err := l.gets(ctx, get(l.keys.settings()))
	if err != nil {
		return s, "", kv, err
	}
	kv, _ = answer.one(0)
	kv.Key = l.keys.settings()
	s, nonce, err = l.decodeSettings(answer.Got[0])
	return s, nonce, kv, err
}

// UpdateSettings changes the cluster's settings. Rooms take them up at once; an
// instance that runs, and began while no journal was required, goes on. Its
// errors are change's, Settings', and Conflict.
func (l *Ledger) UpdateSettings(ctx context.Context, change func(*ClusterSettings) error, actor string) (ClusterSettings, error) {
	s, _, was, err := l.settings(ctx)
	if err != nil {
		return s, err
	}
	before := s
	if err := change(&s); err != nil || s == before {
		return before, err
	}
	mine := randomHex()
	value := s.encode(mine)
	answer, err := l.try(ctx, Txn{
		If:   []Cond{unchanged(was)},
		Then: []Op{put(was.Key, value), l.audit(actor, "update settings", was.Key, was.Value, value)},
	})
	if err == nil && answer.Succeeded {
		return s, nil
	}
	// Unknown, or perhaps sent twice: the nonce tells.
	if now, nonce, _, checkErr := l.settings(ctx); checkErr == nil && nonce == mine {
		return now, nil
	}
	if err != nil {
		return before, err
	}
	return before, allocator.Errorf(allocator.Conflict, "the cluster's settings were changed by somebody else just now")
}
