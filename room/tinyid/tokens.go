package tinyid

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/internal/smallfile"
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

	mu    sync.Mutex // guards what follows
	read  time.Time
	pairs pairs
}

// pairs has the bizTypes of each token. It has tokens' digests, which take no longer to
// compare for a token that is nearly right.
type pairs map[[sha256.Size]byte]map[string]bool

func (p pairs) add(token, bizType string) {
	of := sha256.Sum256([]byte(token))
	if p[of] == nil {
		p[of] = make(map[string]bool)
	}
	p[of][bizType] = true
}

func (p pairs) has(token, bizType string) bool {
	of := p[sha256.Sum256([]byte(token))]
	return of[bizType] || of[everything]
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
	all, err := readTokens(path)
	if err != nil {
		return nil, err
	}
	if log == nil {
		log = hclog.NewNullLogger()
	}
	return &Tokens{path: path, log: log, read: time.Now(), pairs: all}, nil
}

// AnyToken returns tokens of which one is for all bizTypes, and no other is known.
func AnyToken(token string) *Tokens {
	t := &Tokens{pairs: make(pairs)}
	t.pairs.add(token, everything)
	return t
}

// Allow reports whether a token may take IDs of a bizType. If the file cannot be read again,
// what it said before counts, and the log says so each minute.
func (t *Tokens) Allow(token, bizType string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if now := time.Now(); t.path != "" && now.Sub(t.read) >= reread {
		t.read = now
		if all, err := readTokens(t.path); err != nil {
			t.log.Error("tinyid: the tokens could not be read again; those read before count", "error", err)
		} else {
			t.pairs = all
		}
	}
	return t.pairs.has(token, bizType)
}

func readTokens(path string) (pairs, error) {
	data, err := smallfile.Read("tinyid-tokens", path, mostTokens)
	if err != nil {
		return nil, err
	}
	all := make(pairs)
	lines := bufio.NewScanner(bytes.NewReader(data))
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		words := strings.Fields(line)
		if len(words) != 2 {
			return nil, allocator.Errorf(allocator.Invalid,
				"tinyid-tokens: %s line %d has %d words; allowed: a token and a bizType", path, n, len(words))
		}
		all.add(words[0], words[1])
	}
	if err := lines.Err(); err != nil {
		return nil, allocator.Errorf(allocator.Invalid, "tinyid-tokens: %s: %w", path, err)
	}
	if len(all) == 0 {
		return nil, allocator.Errorf(allocator.Invalid,
			"tinyid-tokens: %s has no token; allowed: lines of a token and a bizType", path)
	}
	return all, nil
}
