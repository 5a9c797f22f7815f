package verify

import (
	"context"
	"strings"
	"time"

	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
)

// Head is an entry of the audit as it was written outside etcd, too.
type Head struct {
	Key      string `json:"key"` // without the cluster's prefix
	Hash     string `json:"hash"`
	Writer   string `json:"writer"`
	Sequence int64  `json:"sequence,string"`
	Unknown  bool   `json:"unknown,omitempty"` // etcd did not answer: the entry may be written or not
}

// AuditReport is what a check of the audit found.
type AuditReport struct {
	Changes       int64     `json:"changes,string"`
	Refusals      int64     `json:"refusals,string"`
	Writers       int64     `json:"writers,string"`   // chains
	Unchained     int64     `json:"unchained,string"` // entries of builds that do not chain,
	LastUnchained time.Time `json:"lastUnchained"`    // and the time of the latest one
	Heads         int64     `json:"heads,string"`     // entries that are known from outside etcd, too
	Uncovered     int64     `json:"uncovered,string"` // writers without one
	Unlogged      int64     `json:"unlogged,string"`  // chained entries without one, such as those after the last one
	Problems      []string  `json:"problems"`         // the first MaxProblems
	More          int64     `json:"more,string"`      // problems besides those
}

// full is how many entries a ring has at least once entries were removed because it was full.
const full = record.MaxAudits - record.AuditReserve - 2*record.AuditSlack - record.OverflowMost

// auditing is one check of the audit.
type auditing struct {
	verification
	report  AuditReport
	entries map[string]record.AuditEntry // by key without the prefix, with no values
	chains  map[string]map[int64]string  // by writer and sequence: the key
}

// Audit checks the audit at one revision: that no entry is missing or changed which another one of its writer names,
// and that all heads are there. Heads must have been read before.
func Audit(ctx context.Context, cluster *record.Cluster, heads []Head, opts Options) (AuditReport, error) {
	a := &auditing{entries: make(map[string]record.AuditEntry), chains: make(map[string]map[int64]string)}
	a.cluster, a.Options = cluster, opts
	if err := cluster.Attach(ctx); err != nil {
		return AuditReport{}, err
	}
	for _, ring := range cluster.Keys.Rings() {
		if err := a.ring(ctx, ring, heads); err != nil {
			return AuditReport{}, err
		}
	}
	known := make(map[string]bool)
	for _, h := range heads {
		known[h.Writer] = true
	}
	for writer := range a.chains {
		if a.report.Writers++; !known[writer] {
			a.report.Uncovered++
		}
	}
	a.report.Problems, a.report.More = a.verification.report.Problems, a.verification.report.More
	return a.report, nil
}

// ring checks a ring.
func (a *auditing) ring(ctx context.Context, ring string, heads []Head) error {
	name := strings.TrimPrefix(ring, string(a.cluster.Keys))
	answer, err := a.gets(ctx, firstPage(ring, verifyPage))
	if err != nil {
		return err
	}
	var keys []string
	if err := a.rest(ctx, ring, verifyPage, answer.Got[0], func(kv store.KV) {
		if key := strings.TrimPrefix(kv.Key, string(a.cluster.Keys)); a.entry(key, kv) {
			keys = append(keys, key)
		}
	}); err != nil {
		return err
	}
	if ring == a.cluster.Keys.All(record.Audits) {
		a.report.Changes = int64(len(keys))
	} else {
		a.report.Refusals = int64(len(keys))
	}
	removed, err := a.oldest(ctx, ring, name, keys)
	if err != nil {
		return err
	}
	for _, key := range keys {
		for id, hash := range a.entries[key].After {
			a.must(name+id, hash, removed, key+" names it")
		}
	}
	a.heads(name, removed, heads)
	return nil
}

// entry reads an entry, and reports whether it is one.
func (a *auditing) entry(key string, kv store.KV) bool {
	_, v, err := a.cluster.Keys.Read(kv)
	e, ok := v.(record.AuditEntry)
	if err != nil || !ok {
		a.unreadable(kv.Key, err)
		return false
	}
	e.From, e.To, e.Rest = nil, nil, nil
	a.entries[key] = e
	if e.Writer == "" {
		a.report.Unchained++
		if e.Time.After(a.report.LastUnchained) {
			a.report.LastUnchained = e.Time
		}
		return true
	}
	if a.chains[e.Writer] == nil {
		a.chains[e.Writer] = make(map[int64]string)
	}
	if other := a.chains[e.Writer][e.Sequence]; other != "" {
		a.add("%s and %s are both number %d of writer %s: one was added", other, key, e.Sequence, e.Writer)
	}
	a.chains[e.Writer][e.Sequence] = key
	return true
}

// oldest returns the ID up to which entries were removed because the ring was full.
func (a *auditing) oldest(ctx context.Context, ring, name string, keys []string) (removed string, err error) {
	key := a.cluster.Keys.Oldest(ring)
	answer, err := a.gets(ctx, store.OpGet(key))
	if err != nil {
		return "", err
	}
	kvs := answer.Got[0]
	isFull := len(keys) >= full
	if len(kvs) == 0 {
		if isFull { // of a build that notes nothing
			removed = strings.TrimPrefix(keys[0], name)
		}
		return removed, nil
	}
	var note record.Oldest
	if err := record.Decode(kvs[0], &note); err != nil {
		a.unreadable(key, err)
		return "", nil
	}
	if !isFull {
		a.add("%s says that entries up to %s went because the ring was full, and it has only %d", key, note.Removed,
			len(keys))
	}
	a.must(name+note.ID, note.Hash, "", key+" names it")
	return note.Removed, nil
}

// must adds a problem if an entry is not as it was.
func (a *auditing) must(key, hash, removed, why string) {
	e, there := a.entries[key]
	_, id, _ := strings.Cut(key, "/")
	switch {
	case there && e.Hash != hash:
		a.add("%s was changed: %s with another hash", key, why)
	case !there && (removed == "" || id > removed):
		a.add("%s is missing: %s", key, why)
	}
}

// heads compares a ring with what was written outside etcd.
func (a *auditing) heads(ring, removed string, heads []Head) {
	type span struct{ first, last int64 }
	spans, known := make(map[string]span), make(map[string]bool)
	for _, h := range heads {
		if !strings.HasPrefix(h.Key, ring) {
			continue
		}
		a.report.Heads++
		known[h.Key] = true
		s, there := spans[h.Writer]
		if !there {
			s.first = h.Sequence
		}
		spans[h.Writer] = span{min(s.first, h.Sequence), max(s.last, h.Sequence)}
		if _, there := a.entries[h.Key]; h.Unknown && !there {
			continue
		}
		a.must(h.Key, h.Hash, removed, "the log outside etcd has it")
	}
	for key, e := range a.entries {
		if !strings.HasPrefix(key, ring) || e.Writer == "" || known[key] {
			continue
		}
		a.report.Unlogged++
		if s, logged := spans[e.Writer]; logged && e.Sequence > s.first && e.Sequence < s.last {
			a.add("%s, number %d of writer %s, is not in the log outside etcd: it was added, or the log was cut",
				key, e.Sequence, e.Writer)
		}
	}
}
