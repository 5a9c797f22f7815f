package access

import (
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"path/filepath"
	"slices"
	"strings"

	"github.com/goccy/go-yaml/ast"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/internal/access/policy"
	"github.com/march-id/march/internal/smallfile"
	"github.com/march-id/march/internal/yamlfile"
)

// identities are the issuers and the CAs of a file, each with the names that it may give.
type identities struct {
	Issuers []issuerSettings
	CAs     []clientCA
}

// issuerSettings are what a file says of an issuer.
type issuerSettings struct {
	URL, Audience string
	CA            string            // file with the CAs of the issuer's certificate; empty for the system's
	Roots         []byte            // that file's content
	User, Groups  string            // the claims with the subject and its groups
	Required      map[string]string // claims that a token must have
	Names         policy.Names      // that its tokens may give
}

// byFlags are the settings of an issuer that flags name, and of the keys in a file.
var byFlags = issuerSettings{User: "sub", Groups: "groups", Names: policy.AnyName}

// clientCA is what a file says of a CA of clients' certificates.
type clientCA struct {
	CA    string
	Names policy.Names // that its certificates may give
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
	r := yamlfile.NewReader(path)
	ids := &identities{}
	body := r.Parse(content)
	if body == nil && r.Err() == nil {
		r.Refuse(yamlfile.Position{Line: 1, Column: 1}, "the file is empty; allowed: client_cas, issuers")
	}
	r.Fields("", body, map[string]func(yamlfile.Entry){
		"issuers": func(e yamlfile.Entry) {
			for _, node := range r.List("issuers", e.Value) {
				i := readIssuer(r, node)
				if slices.ContainsFunc(ids.Issuers, func(o issuerSettings) bool { return o.URL == i.URL }) {
					r.Refuse(yamlfile.Of(node), "issuers.url: %q is there twice; allowed: once", yamlfile.Short(i.URL))
				}
				ids.Issuers = append(ids.Issuers, i)
			}
		},
		"client_cas": func(e yamlfile.Entry) {
			for _, node := range r.List("client_cas", e.Value) {
				ids.CAs = append(ids.CAs, readCA(r, node))
			}
		},
	})
	return ids, r.Err()
}

func readIssuer(r *yamlfile.Reader, node ast.Node) issuerSettings {
	i := issuerSettings{User: "sub", Groups: "groups", Required: make(map[string]string)}
	text := func(to *string) func(yamlfile.Entry) { return r.To(to, "issuers", "a text") }
	r.Fields("issuers", node, map[string]func(yamlfile.Entry){
		"url": text(&i.URL), "audience": text(&i.Audience), "ca": text(&i.CA), "user": text(&i.User),
		"groups": text(&i.Groups),
		"required": func(e yamlfile.Entry) {
			for _, claim := range r.Entries("issuers.required", e.Value) {
				i.Required[claim.Name], _ = r.Value("issuers.required", claim.Value, "the claim's value")
			}
		},
		"names": func(e yamlfile.Entry) {
			i.Names = policy.ReadSubjects(r, "issuers.names", e, policy.JWT, policy.Group)
		},
	})
	at := yamlfile.Of(node)
	if err := checkIssuer(i.URL); err != nil {
		r.Refuse(at, "issuers.url: %w", err)
	}
	for field, lacks := range map[string]bool{"audience": i.Audience == "", "names": i.Names.None()} {
		if lacks {
			r.Refuse(at, "issuers: no %s; an issuer has it", field)
		}
	}
	return i
}

func readCA(r *yamlfile.Reader, node ast.Node) (c clientCA) {
	r.Fields("client_cas", node, map[string]func(yamlfile.Entry){
		"ca": r.To(&c.CA, "client_cas", "a file"),
		"names": func(e yamlfile.Entry) {
			c.Names = policy.ReadSubjects(r, "client_cas.names", e, policy.SPIFFE, policy.DNS)
		},
	})
	for field, lacks := range map[string]bool{"ca": c.CA == "", "names": c.Names.None()} {
		if lacks {
			r.Refuse(yamlfile.Of(node), "client_cas: no %s; a CA has it", field)
		}
	}
	return c
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
