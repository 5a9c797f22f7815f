package tinyid

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/march-id/march/allocator"
)

// Tokens says which tokens may take IDs of which bizTypes, as TinyId's table tiny_id_token
// does. They are read from a file, a token and a bizType a line, again each minute: a token
// that leaves the file stops within that.
//
//	# token                            bizType
//	0f673adf80504e2eaa552f5d791b644c   order
//	b5cd5d4ef1f948ac9b2ae9d1ae52d49b   *
type Tokens struct {
	path string
	log  hclog.Logger

	mu   sync.Mutex // guards what follows
	read time.Time
	// pairs has digests, which take no longer to compare for a token that is nearly right.
	pairs map[[sha256.Size]byte]bool
}

// everything stands in the file for every bizType.
const everything = "*"

const (
	reread     = time.Minute
	mostTokens = 1 << 20 // bytes of the file
)

// OpenTokens reads the file. Its error is Invalid and names the line: one that is not two
// words, or a file without any.
func OpenTokens(path string, log hclog.Logger) (*Tokens, error) {
	pairs, err := readTokens(path)
	if err != nil {
		return nil, err
	}
	if log == nil {
		log = hclog.NewNullLogger()
	}
	return &Tokens{path: path, log: log, read: time.Now(), pairs: pairs}, nil
}

// AnyToken returns tokens of which one is for all bizTypes, and no other is known.
func AnyToken(token string) *Tokens {
	return &Tokens{pairs: map[[sha256.Size]byte]bool{digest(token, everything): true}}
}

// Allow reports whether a token may take IDs of a bizType. If the file cannot be read again,
// what it said before counts, and the log says so each minute.
func (t *Tokens) Allow(token, bizType string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if now := time.Now(); t.path != "" && now.Sub(t.read) >= reread {
		t.read = now
		if pairs, err := readTokens(t.path); err != nil {
			t.log.Error("tinyid: the tokens could not be read again; those read before count", "error", err)
		} else {
			t.pairs = pairs
		}
	}
	return t.pairs[digest(token, bizType)] || t.pairs[digest(token, everything)]
}

func digest(token, bizType string) [sha256.Size]byte {
	var usual [128]byte
	b := append(append(usual[:0], token...), 0)
	return sha256.Sum256(append(b, bizType...))
}

func readTokens(path string) (map[[sha256.Size]byte]bool, error) {
	data, err := os.ReadFile(path) //nolint:gosec // the operator's own
	if err != nil {
		return nil, allocator.Errorf(allocator.Invalid, "tinyid-tokens: %w", err)
	}
	if len(data) > mostTokens {
		return nil, allocator.Errorf(allocator.Invalid, "tinyid-tokens: %s has %d bytes; allowed: %d", path, len(data), mostTokens)
	}
	pairs := make(map[[sha256.Size]byte]bool)
	lines := bufio.NewScanner(bytes.NewReader(data))
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		words := strings.Fields(line)
		if len(words) != 2 {
			return nil, allocator.Errorf(allocator.Invalid, "tinyid-tokens: %s line %d has %d words; allowed: a token and a bizType", path, n, len(words))
		}
		pairs[digest(words[0], words[1])] = true
	}
	if err := lines.Err(); err != nil {
		return nil, allocator.Errorf(allocator.Invalid, "tinyid-tokens: %s: %w", path, err)
	}
	if len(pairs) == 0 {
		return nil, allocator.Errorf(allocator.Invalid, "tinyid-tokens: %s has no token; allowed: lines of a token and a bizType", path)
	}
	return pairs, nil
}
