package store

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/authpb"

	"github.com/march-id/march/allocator"
)

// Right is the right to read or to write keys in etcd.
type Right struct {
	Interval
	Write bool
}

// String returns the right as it follows "may not" in a sentence: write /march/a/beat.
func (r Right) String() string {
	verb := "read "
	if r.Write {
		verb = "write "
	}
	switch {
	case r.End == "":
		return verb + r.Key
	case strings.HasSuffix(r.Key, "/") && r.End == PrefixEnd(r.Key):
		return verb + r.Key + "*"
	}
	return verb + r.Key + " to " + r.End
}

// Rights are what the user of a store may do. The zero value may do everything.
type Rights struct {
	User    string // empty if etcd asks for no user, or the user is root
	granted []Right
}

// ends returns the exclusive end of an interval. For a single key that is the least key above
// it.
func (in Interval) ends() string {
	if in.End == "" {
		return in.Key + "\x00"
	}
	return in.End
}

// noEnd is above every key: the end of a right on all keys from some key on.
const noEnd = "\xff\xff\xff\xff"

// Allows reports whether the user has a right, possibly by several grants together.
func (r Rights) Allows(right Right) bool {
	if r.User == "" {
		return true
	}
	from := right.Key
	for _, g := range r.granted { // sorted by Key
		if g.Write == right.Write && g.Key <= from && from < g.ends() {
			from = g.ends()
		}
	}
	return from >= right.ends()
}

// Missing returns the rights among these that the user does not have.
func (r Rights) Missing(needed []Right) (missing []Right) {
	for _, right := range needed {
		if !r.Allows(right) {
			missing = append(missing, right)
		}
	}
	return missing
}

// Writes returns the granted rights to write any keys of intervals. A user that may do everything
// was granted nothing.
func (r Rights) Writes(keys []Interval) (granted []Right) {
	for _, g := range r.granted {
		if g.Write && slices.ContainsFunc(keys, func(in Interval) bool {
			return g.Key < in.ends() && in.Key < g.ends()
		}) {
			granted = append(granted, g)
		}
	}
	return granted
}

// needs returns the rights that a transaction needs.
func (t Txn) needs() (all []Right) {
	for _, c := range t.If {
		all = append(all, Right{Interval: Interval{Key: c.Key}})
	}
	for _, op := range slices.Concat(t.Then, t.Else) {
		switch {
		case op.Put != nil:
			all = append(all, Right{Interval: Interval{Key: op.Put.Key}, Write: true})
		case op.Get != nil:
			all = append(all, Right{Interval: op.Get.Interval})
		default:
			all = append(all, Right{Interval: Interval{Key: op.Delete}, Write: true})
		}
	}
	return all
}

// RightsOf returns the rights of a store's user. In a store without users everyone may do
// everything.
func RightsOf(ctx context.Context, s Store) (Rights, error) {
	if e, ok := s.(*etcd); ok {
		return e.rights(ctx)
	}
	return Rights{}, nil
}

// user returns the name by which etcd knows the caller: that of the password, or else the
// common name of the certificate. It is empty if there is neither.
func (e *etcd) user() string {
	if e.cfg.Username != "" || e.cfg.TLS == nil {
		return e.cfg.Username
	}
	cfg := e.cfg.TLS("")
	if cfg.GetClientCertificate == nil {
		return ""
	}
	pair, err := cfg.GetClientCertificate(&tls.CertificateRequestInfo{})
	if err != nil || len(pair.Certificate) == 0 {
		return ""
	}
	leaf, err := x509.ParseCertificate(pair.Certificate[0])
	if err != nil {
		return ""
	}
	return leaf.Subject.CommonName
}

// rights reads from etcd the user's roles and their grants, which every user may read.
func (e *etcd) rights(ctx context.Context) (Rights, error) {
	m, err := e.client()
	name := e.user()
	if err != nil || name == "" {
		return Rights{}, err
	}
	status, err := m.AuthStatus(ctx)
	if err == nil && !status.Enabled {
		return Rights{}, nil
	}
	user, err := m.UserGet(ctx, name)
	if err != nil {
		return Rights{}, e.failed(m, m.endpoint, err)
	}
	r := Rights{User: name}
	for _, role := range user.Roles {
		if role == "root" {
			return Rights{}, nil
		}
		granted, err := m.RoleGet(ctx, role)
		if err != nil {
			return Rights{}, e.failed(m, m.endpoint, err)
		}
		for _, p := range granted.Perm {
			in := Interval{Key: string(p.Key), End: string(p.RangeEnd)}
			if in.End == "\x00" {
				in.End = noEnd
			}
			if p.PermType != authpb.Permission_WRITE {
				r.granted = append(r.granted, Right{Interval: in})
			}
			if p.PermType != authpb.Permission_READ {
				r.granted = append(r.granted, Right{Interval: in, Write: true})
			}
		}
	}
	slices.SortFunc(r.granted, func(a, b Right) int { return cmp.Compare(a.Key, b.Key) })
	return r, nil
}

// rightsLast is how long the result of rights is reused for messages of refusals.
const rightsLast = 5 * time.Second

// denied adds to etcd's refusal of a transaction the rights that the user lacks.
func (e *etcd) denied(ctx context.Context, txn Txn, err error) error {
	if allocator.KindOf(err) != allocator.Denied {
		return err
	}
	r, known := e.lastRights()
	if !known {
		var failed error
		if r, failed = e.rights(ctx); failed != nil {
			return allocator.Errorf(allocator.Denied,
				"%w: user %q; `march etcd roles` prints how to make it", err, e.user())
		}
		e.keepRights(r)
	}
	missing := r.Missing(txn.needs())
	if len(missing) == 0 {
		return err
	}
	return allocator.Errorf(allocator.Denied,
		"%w: user %s may not %v; `march etcd roles` prints what it needs", err, r.User, missing[0])
}

func (e *etcd) lastRights() (Rights, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.mu.rights, time.Since(e.mu.rightsAt) < rightsLast
}

func (e *etcd) keepRights(r Rights) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.mu.rights, e.mu.rightsAt = r, time.Now()
}
