package access

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/internal/access/policy"
)

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
