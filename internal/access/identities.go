package access

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/internal/access/policy"
	"github.com/march-id/march/internal/smallfile"
	"github.com/march-id/march/internal/yamlfile"
)

// identities are the issuers and the CAs of a file, each with the names that it may give.
type identities struct {
	Issuers []issuerSettings `yaml:"issuers"`
	CAs     []clientCA       `yaml:"client_cas"`
}

// issuerSettings are what a file says of an issuer.
type issuerSettings struct {
	URL      string `yaml:"url"`
	Audience string `yaml:"audience"`
	// CA is a file with the CAs of the issuer's certificate, empty for the system's, and Roots its content.
	CA    string `yaml:"ca"`
	Roots []byte
	// User and Groups are the claims with the subject and its groups.
	User     string            `yaml:"user"`
	Groups   string            `yaml:"groups"`
	Required map[string]string `yaml:"required" allowed:"the claim's value"` // claims that a token must have
	Names    policy.Names      `yaml:"names"`                                // that its tokens may give
}

// byFlags are the settings of an issuer that flags name, and of the keys in a file.
var byFlags = issuerSettings{User: "sub", Groups: "groups", Names: policy.AnyName}

// clientCA is what a file says of a CA of clients' certificates.
type clientCA struct {
	CA    string       `yaml:"ca" allowed:"a file"`
	Names policy.Names `yaml:"names"` // that its certificates may give
	keys  []string     // the public keys of the file's certificates
}

// named returns the files that a file of identities names.
func (ids *identities) named() (paths []string) {
	for _, i := range ids.Issuers {
		if i.CA != "" {
			paths = append(paths, i.CA)
		}
	}
	for _, c := range ids.CAs {
		paths = append(paths, c.CA)
	}
	return paths
}

// archive is a file of identities with the files that it names, so that a change of any of them is one.
type archive struct {
	Main  []byte
	Named map[string][]byte
}

// gather returns the archive of a file of identities. Names of files are relative to its folder. Its error is Invalid.
func gather(path string, main []byte) ([]byte, error) {
	ids, err := readIdentities(path, main)
	if err != nil {
		return nil, err
	}
	a := archive{Main: main, Named: make(map[string][]byte)}
	for _, name := range ids.named() {
		at := name
		if !filepath.IsAbs(at) {
			at = filepath.Join(filepath.Dir(path), at)
		}
		if a.Named[name], err = smallfile.Read("identities", at, maxFile); err != nil {
			return nil, err
		}
	}
	return json.Marshal(a)
}

// parseIdentities reads what gather returned. Its error is Invalid.
func parseIdentities(path string, content []byte) (*identities, error) {
	var a archive
	if err := json.Unmarshal(content, &a); err != nil {
		return nil, err
	}
	ids, err := readIdentities(path, a.Main)
	if err != nil {
		return nil, err
	}
	for k := range ids.Issuers {
		ids.Issuers[k].Roots = a.Named[ids.Issuers[k].CA]
	}
	for k := range ids.CAs {
		c := &ids.CAs[k]
		for block, rest := pem.Decode(a.Named[c.CA]); block != nil; block, rest = pem.Decode(rest) {
			cert, err := x509.ParseCertificate(block.Bytes)
			if err != nil {
				return nil, allocator.Errorf(allocator.Invalid, "identities: %s: %w", c.CA, err)
			}
			c.keys = append(c.keys, string(cert.RawSubjectPublicKeyInfo))
		}
		if len(c.keys) == 0 {
			return nil, allocator.Errorf(allocator.Invalid, "identities: %s has no certificate in PEM", c.CA)
		}
	}
	return ids, nil
}

// readIdentities reads a file of identities without the files that it names. Its error is Invalid.
func readIdentities(path string, content []byte) (*identities, error) {
	ids := &identities{}
	f := yamlfile.Read(path, content, ids)
	lacks := func(at, list, of string, is map[string]bool) {
		for field, lacks := range is {
			if lacks {
				f.Refuse(at+"."+field, "%s: no %s; %s has it", list, field, of)
			}
		}
	}
	for k := range ids.Issuers {
		i, at := &ids.Issuers[k], fmt.Sprintf("issuers[%d]", k)
		if !f.Has(at + ".user") {
			i.User = byFlags.User
		}
		if !f.Has(at + ".groups") {
			i.Groups = byFlags.Groups
		}
		if err := checkIssuer(i.URL); err != nil {
			f.Refuse(at+".url", "issuers.url: %w", err)
		}
		if slices.ContainsFunc(ids.Issuers[:k], func(o issuerSettings) bool { return o.URL == i.URL }) {
			f.Refuse(at+".url", "issuers.url: %q is there twice; allowed: once", yamlfile.Short(i.URL))
		}
		lacks(at, "issuers", "an issuer", map[string]bool{"audience": i.Audience == "", "names": i.Names.None()})
		i.Names.CheckForms(f, at+".names", "issuers.names", policy.JWT, policy.Group)
	}
	for k := range ids.CAs {
		c, at := &ids.CAs[k], fmt.Sprintf("client_cas[%d]", k)
		lacks(at, "client_cas", "a CA", map[string]bool{"ca": c.CA == "", "names": c.Names.None()})
		c.Names.CheckForms(f, at+".names", "client_cas.names", policy.SPIFFE, policy.DNS)
	}
	return ids, f.Err()
}

// bound are the CAs of clients' certificates with the names that each may give; none where any may give all.
type bound []clientCA

// may returns the names of a certificate that its CAs may give. chains are how TLS verified it. Its error is
// Unauthenticated: no CA may give the certificate's SPIFFE ID, or any of its names.
func (b bound) may(names []string, chains [][]*x509.Certificate) (allowed []string, err error) {
	if len(b) == 0 {
		return names, nil
	}
	for _, name := range names {
		if slices.ContainsFunc(chains, func(chain []*x509.Certificate) bool { return b.gives(name, chain) }) {
			allowed = append(allowed, name)
		} else if strings.HasPrefix(name, policy.SPIFFE) {
			return nil, b.refuse(name)
		}
	}
	if len(allowed) == 0 {
		return nil, b.refuse(strings.Join(names, ", "))
	}
	return allowed, nil
}

func (b bound) refuse(name string) error {
	return allocator.Errorf(allocator.Unauthenticated, "the CA of the client certificate may not give the name %.300s"+
		"; allowed: the names of client_cas in --identities", name)
}

// gives reports whether the CAs of a chain may give a name: each one that the file has, and it has one.
func (b bound) gives(name string, chain []*x509.Certificate) bool {
	known := false
	for _, cert := range chain[min(1, len(chain)):] {
		for _, ca := range b {
			if !slices.Contains(ca.keys, string(cert.RawSubjectPublicKeyInfo)) {
				continue
			}
			if known = true; !ca.Names.Match(name) {
				return false
			}
		}
	}
	return known
}

// A file of tokens has a line for each token: the subject's name, sha256: and the token's
// hash in hex, and perhaps expires= and a time. A token has 256 random bits, so that a plain
// hash cannot be turned back, and looking it up needs no slow hash.

// maxFile bounds each file of rights, in bytes.
const maxFile = policy.MaxFile

const (
	tokenPrefix = "march_" // by which scanners for leaked secrets know a token
	hashPrefix  = "sha256:"
	expires     = "expires="
)

var tokenName = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9._@-]{0,62}$`)

// NewToken returns a new token of a name, and its line for the file. expires is zero for a
// token that does not end.
func NewToken(name string, ends time.Time) (token, line string, err error) {
	if !tokenName.MatchString(name) {
		return "", "", allocator.Errorf(allocator.Invalid,
			"name: %.100q; allowed: 1 to 63 of a-z, A-Z, 0-9 and ._@-, beginning with a letter or a digit", name)
	}
	secret := make([]byte, 32)
	_, _ = rand.Read(secret) // never fails
	token = tokenPrefix + base64.RawURLEncoding.EncodeToString(secret)
	hash := sha256.Sum256([]byte(token))
	line = name + " " + hashPrefix + hex.EncodeToString(hash[:])
	if !ends.IsZero() {
		line += " " + expires + ends.UTC().Format(time.RFC3339)
	}
	return token, line, nil
}

// tokens are the identities of a file's tokens, by the tokens' hashes.
type tokens map[[sha256.Size]byte]Identity

// parseTokens reads a file of tokens. Its error is Invalid, and names line and field, but no
// hash.
func parseTokens(path string, content []byte) (tokens, error) {
	if len(bytes.TrimSpace(content)) == 0 {
		return nil, allocator.Errorf(allocator.Invalid, "%s: it is empty, perhaps cut off; allowed: lines of tokens, "+
			"or a line such as \"# none\" to revoke all", path)
	}
	t := make(tokens)
	lines := bufio.NewScanner(bytes.NewReader(content))
	for n := 1; lines.Scan(); n++ {
		text, _, _ := strings.Cut(lines.Text(), "#")
		fields := strings.Fields(text)
		if len(fields) == 0 {
			continue
		}
		bad := func(format string, args ...any) error {
			return fmt.Errorf("%s:%d: %w", path, n, allocator.Errorf(allocator.Invalid, format, args...))
		}
		if len(fields) < 2 || len(fields) > 3 {
			return nil, bad("%d fields; allowed: NAME sha256:HASH, then perhaps expires=TIME; "+
				"`march token create` makes such a line", len(fields))
		}
		id := Identity{Names: []string{policy.Token + fields[0]}}
		if !tokenName.MatchString(fields[0]) {
			return nil, bad("name: %.100q; allowed: 1 to 63 of a-z, A-Z, 0-9 and ._@-", fields[0])
		}
		digits, ok := strings.CutPrefix(fields[1], hashPrefix)
		hash, err := hex.DecodeString(digits)
		if !ok || err != nil || len(hash) != sha256.Size {
			return nil, bad("the token of %s is no hash; allowed: sha256: and 64 hex digits, never the token itself",
				fields[0])
		}
		if len(fields) == 3 {
			end, ok := strings.CutPrefix(fields[2], expires)
			if id.Expires, err = time.Parse(time.RFC3339, end); !ok || err != nil {
				return nil, bad("expires of %s: %.100q; allowed: expires=2027-01-31T00:00:00Z", fields[0], fields[2])
			}
		}
		key := [sha256.Size]byte(hash)
		if other, twice := t[key]; twice {
			return nil, bad("the token of %s is that of %s, too; allowed: each token once", fields[0], other.Names[0])
		}
		t[key] = id
	}
	if err := lines.Err(); err != nil {
		return nil, allocator.Errorf(allocator.Invalid, "%s: %w", path, err)
	}
	return t, nil
}
