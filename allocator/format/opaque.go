package format

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"math"
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
		return Key{}, allocator.Errorf(allocator.Invalid,
			"key name: %q; allowed: 1 to 63 of a-z, 0-9, '.', '_' and '-', a letter or digit first", short(name))
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
		return Key{}, allocator.Errorf(allocator.Invalid,
			"key %s: not in hexadecimal; allowed: %d digits", short(name), 2*KeySize)
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
// Tessaro 2016; Beyne 2021) need more texts than one key and tweak have. More rounds would
// cost time in each text.
const rounds = 8

// leastOpaque is the smallest domain, as in NIST SP 800-38G revision 1: in a smaller one a
// few known pairs give away much of the permutation.
const leastOpaque = 1_000_000

// opaque is a keyed permutation of the numbers below size: a Feistel network over a grid of
// about as many numbers, as FE2 (Bellare, Ristenpart, Rogaway and Stegers 2009). Its round
// function is AES-128, and it walks cycles. In the parts that other implementations need:
//
//	low    = the square root of size, rounded up
//	high   = size / low, rounded up
//	key    = the first 16 bytes of HMAC-SHA-256(secret, "march opaque 1\n" + size in
//	         decimal + "\n" + tweak)
//	F(i,x) = AES-128(key, the byte i, 7 zero bytes, x in 8 bytes, big-endian):
//	         its first 8 bytes, big-endian
//	n      = h * low + l, where l < low and h < high
//	round i = 0, 2, 4, 6:  h = (h + F(i, l) * high / 2^64) mod high
//	round i = 1, 3, 5, 7:  l = (l + F(i, h) * low / 2^64) mod low
//
// The product has 128 bits, and its division is rounded down: no number below high or low
// is more likely than another by more than one part in 2^32.
//
// All rounds are done again while the result is size or more. As a permutation of all
// numbers below low * high leads back into the domain, and at most low of them, one in a
// thousand, are outside, that is rare in each domain.
type opaque struct {
	key       string // its name
	tweak     string
	size      uint64 // up to 2^63
	low, high uint64 // the sides of the grid, below 2^32
	cipher    cipher.Block
	buffers   *sync.Pool // of *buffer: what an interface's method gets is on the heap
}

type buffer [2 * aes.BlockSize]byte

func newOpaque(key string, size uint64, tweak string) *opaque {
	low := uint64(math.Sqrt(float64(size))) // may be one off
	for low*low < size {
		low++
	}
	for (low-1)*(low-1) >= size {
		low--
	}
	return &opaque{key: key, tweak: tweak, size: size, low: low, high: (size + low - 1) / low}
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

// round returns F(i, x) * below / 2^64, which is below below.
func (o *opaque) round(b *buffer, i int, x, below uint64) uint64 {
	b[0] = byte(i)
	binary.BigEndian.PutUint64(b[8:], x)
	o.cipher.Encrypt(b[aes.BlockSize:], b[:aes.BlockSize])
	scaled, _ := bits.Mul64(binary.BigEndian.Uint64(b[aes.BlockSize:]), below)
	return scaled
}

// wrapped returns n mod side, where n is below twice the side.
func wrapped(n, side uint64) uint64 {
	if n >= side {
		return n - side
	}
	return n
}

func (o *opaque) forward(n uint64) uint64 {
	b, _ := o.buffers.Get().(*buffer)
	defer o.buffers.Put(b)
	for {
		h, l := n/o.low, n%o.low
		for i := 0; i < rounds; i += 2 {
			h = wrapped(h+o.round(b, i, l, o.high), o.high)
			l = wrapped(l+o.round(b, i+1, h, o.low), o.low)
		}
		if n = h*o.low + l; n < o.size {
			return n
		}
	}
}

func (o *opaque) backward(n uint64) uint64 {
	b, _ := o.buffers.Get().(*buffer)
	defer o.buffers.Put(b)
	for {
		h, l := n/o.low, n%o.low
		for i := rounds - 2; i >= 0; i -= 2 {
			l = wrapped(l+o.low-o.round(b, i+1, h, o.low), o.low)
			h = wrapped(h+o.high-o.round(b, i, l, o.high), o.high)
		}
		if n = h*o.low + l; n < o.size {
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

// permutation reorders the numbers 0 to largest.
type permutation interface {
	forward(n uint64) uint64
	backward(n uint64) uint64
	largest() uint64
	missing() string // the name of a key that is not there
}

// reverse puts the lowest bit of a number of so many bits first, the next one second, and
// so on: numbers that follow each other lie far apart, in a store that splits its keys
// into ranges. With 63 bits it is Spanner's bit_reversed_positive and
// BIT_REVERSE(n, TRUE), which keep the sign.
type reverse int

func (r reverse) forward(n uint64) uint64  { return bits.Reverse64(n) >> (64 - int(r)) }
func (r reverse) backward(n uint64) uint64 { return r.forward(n) }
func (r reverse) largest() uint64          { return 1<<r - 1 }
func (r reverse) missing() string          { return "" }
