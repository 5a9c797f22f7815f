package format

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"math/bits"
	"strconv"
	"strings"
	"sync"

	"github.com/march-id/march/allocator"
)

// Key is the secret of opaque numbers. It prints as its name only. The zero value is no
// key.
type Key struct {
	name   string
	secret [KeySize]byte
}

// KeySize is how many bytes a secret has.
const KeySize = 32

// NewKey returns the key of a name (as tags have them) and a secret of KeySize random
// bytes. Its error is Invalid.
func NewKey(name string, secret []byte) (Key, error) {
	k := Key{name: name}
	if _, err := allocator.ParseTag(name); err != nil {
		return Key{}, allocator.Errorf(allocator.Invalid, "key name: %q; allowed: 1 to 63 of a-z, 0-9, '.', '_' and '-', a letter or digit first", short(name))
	}
	if len(secret) != KeySize {
		return Key{}, allocator.Errorf(allocator.Invalid, "key %s: %d bytes; allowed: %d", name, len(secret), KeySize)
	}
	copy(k.secret[:], secret)
	return k, nil
}

// ParseKey returns the key of a name and a file's text: the secret as 64 hexadecimal digits,
// with any white space around. Its error is Invalid, and does not repeat the text.
func ParseKey(name, text string) (Key, error) {
	secret, err := hex.DecodeString(strings.TrimSpace(text))
	if err != nil {
		return Key{}, allocator.Errorf(allocator.Invalid, "key %s: not in hexadecimal; allowed: %d digits", short(name), 2*KeySize)
	}
	return NewKey(name, secret)
}

// Name returns the name by which descriptions have the key.
func (k Key) Name() string { return k.name }

// String returns the name.
func (k Key) String() string { return "key " + k.name }

// GoString returns the name.
func (k Key) GoString() string { return k.String() }

// CheckValue tells whether two processes have the same secret, and tells nothing else of
// it: the first 8 bytes of HMAC-SHA-256(secret, "march opaque check"), in hex.
func (k Key) CheckValue() string { return hex.EncodeToString(k.derive("march opaque check")[:8]) }

func (k Key) derive(label string) []byte {
	mac := hmac.New(sha256.New, k.secret[:])
	mac.Write([]byte(label))
	return mac.Sum(nil)
}

// rounds of the Feistel network. The known attacks on so many (Patarin; Bellare, Hoang and
// Tessaro 2016) need more texts than one key and tweak have. More rounds would cost time
// in each text.
const rounds = 8

// leastOpaque is the smallest domain, as in NIST SP 800-38G revision 1: in a smaller one a
// few known pairs give away much of the permutation.
const leastOpaque = 1_000_000

// opaque is a keyed permutation of the numbers below size: a Feistel network over as many
// bits as size-1 has, whose round function is AES-128, with cycle walking. In the parts
// that other implementations need:
//
//	bits   = length of size-1 in bits; low = (bits+1)/2, high = bits-low
//	key    = the first 16 bytes of HMAC-SHA-256(secret, "march opaque 1\n" + size in
//	         decimal + "\n" + tweak)
//	F(i,x) = AES-128(key, the byte i, 7 zero bytes, x in 8 bytes, big-endian):
//	         its first 8 bytes, big-endian
//	n      = h << low | l
//	round i = 0, 2, 4, 6:  h = h XOR the lowest high bits of F(i, l)
//	round i = 1, 3, 5, 7:  l = l XOR the lowest low bits of F(i, h)
//
// All rounds are done again while the result is size or more. As a permutation of all
// numbers of so many bits leads back into the domain, and less than half of them are
// outside, that is seldom.
type opaque struct {
	key       string // its name
	tweak     string
	size      uint64 // up to 2^63
	low, high int    // bits of the halves
	cipher    cipher.Block
	buffers   *sync.Pool // of *buffer: what an interface's method gets is on the heap
}

type buffer [2 * aes.BlockSize]byte

func newOpaque(key string, size uint64, tweak string) *opaque {
	length := bits.Len64(size - 1)
	return &opaque{key: key, tweak: tweak, size: size, low: (length + 1) / 2, high: length / 2}
}

// unlock gives the permutation its key.
func (o *opaque) unlock(k Key) error {
	block, err := aes.NewCipher(k.derive("march opaque 1\n" + strconv.FormatUint(o.size, 10) + "\n" + o.tweak)[:16])
	if err != nil {
		return err
	}
	o.cipher, o.buffers = block, &sync.Pool{New: func() any { return new(buffer) }}
	return nil
}

// round returns F(i, x).
func (o *opaque) round(b *buffer, i int, x uint64) uint64 {
	b[0] = byte(i)
	binary.BigEndian.PutUint64(b[8:], x)
	o.cipher.Encrypt(b[aes.BlockSize:], b[:aes.BlockSize])
	return binary.BigEndian.Uint64(b[aes.BlockSize:])
}

func (o *opaque) forward(n uint64) uint64 {
	b, _ := o.buffers.Get().(*buffer)
	defer o.buffers.Put(b)
	for {
		h, l := n>>o.low, n&(1<<o.low-1)
		for i := 0; i < rounds; i += 2 {
			h ^= o.round(b, i, l) & (1<<o.high - 1)
			l ^= o.round(b, i+1, h) & (1<<o.low - 1)
		}
		if n = h<<o.low | l; n < o.size {
			return n
		}
	}
}

func (o *opaque) backward(n uint64) uint64 {
	b, _ := o.buffers.Get().(*buffer)
	defer o.buffers.Put(b)
	for {
		h, l := n>>o.low, n&(1<<o.low-1)
		for i := rounds - 2; i >= 0; i -= 2 {
			l ^= o.round(b, i+1, h) & (1<<o.low - 1)
			h ^= o.round(b, i, l) & (1<<o.high - 1)
		}
		if n = h<<o.low | l; n < o.size {
			return n
		}
	}
}

func (o *opaque) largest() uint64 { return o.size - 1 }

func (o *opaque) missing() string {
	if o.cipher == nil {
		return o.key
	}
	return ""
}
