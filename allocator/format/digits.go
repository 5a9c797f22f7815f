package format

import (
	"fmt"
	"math/bits"
)

// radix is a way to write a number: how many digits there are and which characters they
// have. The zero value is not valid.
type radix uint8

const (
	radix10 radix = 10
	radix32 radix = 32
	radix36 radix = 36
	radix62 radix = 62
)

// Characters of the digits, from 0 on. Radix 62 and 36 are CosId's (RadixIdConverter.java:
// 36 is the first 36 of 62, upper case only). 32 is Crockford's
// (https://www.crockford.com/base32.html): no I, L, O and U.
const (
	digits62        = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
	digitsCrockford = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
)

// most is how many digits 2^63-1 has in a radix.
func (r radix) most() int {
	switch r {
	case radix10:
		return 19
	case radix32, radix36:
		return 13
	}
	return 11
}

// name returns what the radix is called in a description.
func (r radix) name() string {
	switch r {
	case radix10:
		return "decimal"
	case radix32:
		return "crockford"
	}
	return fmt.Sprintf("radix%d", r)
}

// alphabet returns the characters of the digits.
func (r radix) alphabet() string {
	if r == radix32 {
		return digitsCrockford
	}
	return digits62[:r]
}

// allowed names the characters for people.
func (r radix) allowed() string {
	switch r {
	case radix10:
		return "0-9"
	case radix32:
		return "0-9, A-Z without U, and hyphens"
	case radix36:
		return "0-9A-Z"
	}
	return "0-9A-Za-z"
}

// pairs has, for each radix, the two characters of each number below its square.
var pairs = func() (table [radix62 + 1][]byte) {
	for _, r := range []radix{radix10, radix32, radix36, radix62} {
		all := r.alphabet()
		for i := range all {
			for j := range all {
				table[r] = append(table[r], all[i], all[j])
			}
		}
	}
	return table
}()

// noDigit stands in values for characters that are none of the radix.
const noDigit = 0xff

// values has, for each radix, the digit of each character. Crockford's also has what
// people take for another digit: lower case, O for 0, I and L for 1.
var values = func() (table [radix62 + 1][256]byte) {
	for _, r := range []radix{radix10, radix32, radix36, radix62} {
		for c := range table[r] {
			table[r][c] = noDigit
		}
		for digit, c := range []byte(r.alphabet()) {
			table[r][c] = byte(digit)
			if r == radix32 && c >= 'A' {
				table[r][c-'A'+'a'] = byte(digit)
			}
		}
	}
	for _, c := range "Oo" {
		table[radix32][c] = 0
	}
	for _, c := range "IiLl" {
		table[radix32][c] = 1
	}
	return table
}()

// split returns n / r^2 and n mod r^2. Each divisor is a constant, so that the compiler
// makes a multiplication of the division.
func (r radix) split(n uint64) (quotient, rest uint64) {
	switch r {
	case radix62:
		return n / (62 * 62), n % (62 * 62)
	case radix36:
		return n / (36 * 36), n % (36 * 36)
	case radix32:
		return n / (32 * 32), n % (32 * 32)
	}
	return n / 100, n % 100
}

const zeros = "0000000000000000000" // as many as any number has digits

// pad appends n with zeros in front, so that it has width digits. It must have no more.
func (r radix) pad(dst []byte, n uint64, width int) []byte {
	dst = append(dst, zeros[:width]...)
	r.fill(dst[len(dst)-width:], n)
	return dst
}

// fill writes n into all of dst, with zeros in front.
func (r radix) fill(dst []byte, n uint64) {
	table := pairs[r]
	i := len(dst)
	for ; i >= 2; i -= 2 {
		var rest uint64
		n, rest = r.split(n)
		dst[i-2], dst[i-1] = table[2*rest], table[2*rest+1]
	}
	if i == 1 {
		dst[0] = table[2*n+1]
	}
}

// append appends n without zeros in front; 0 is one zero.
func (r radix) append(dst []byte, n uint64) []byte { return r.pad(dst, n, r.length(n)) }

// length returns how many digits n has.
func (r radix) length(n uint64) int {
	length := 1
	for n >= uint64(r) {
		n /= uint64(r)
		length++
	}
	return length
}

// largest returns the largest number of a width, at most 2^63-1.
func (r radix) largest(width int) uint64 {
	n := uint64(0)
	for range width {
		high, low := bits.Mul64(n, uint64(r))
		low, carry := bits.Add64(low, uint64(r)-1, 0)
		if n = low; high+carry > 0 || n > maxID {
			return maxID
		}
	}
	return n
}

// number is a number in a text: of a fixed width, or of width 0 without zeros in front.
type number struct {
	radix radix
	width int
}

func (b number) largest() uint64 {
	if b.width == 0 {
		return maxID
	}
	return b.radix.largest(b.width)
}

func (b number) append(dst []byte, n uint64) []byte {
	if b.width > 0 {
		return b.radix.pad(dst, n, b.width)
	}
	return b.radix.append(dst, n)
}

// parse reads text[from:to]. It refuses what append does not write, but for Crockford's
// corrections.
func (b number) parse(text string, from, to int) (uint64, error) {
	var n uint64
	count, table := 0, &values[b.radix]
	radix := uint64(b.radix)
	room := maxID / radix // a larger number has no room for another digit
	first := -1           // where the first digit is
	for i := from; i < to; i++ {
		digit := table[text[i]]
		if digit == noDigit {
			if b.radix == radix32 && text[i] == '-' { // "hyphens are ignored in decoding"
				continue
			}
			return 0, refuse(text, i, b.radix.allowed(), "%s is no digit of %s", character(text, i), b.radix.name())
		}
		fits := n <= room
		if n = n*radix + uint64(digit); !fits || n > maxID {
			return 0, refuse(text, from, fmt.Sprintf("up to %d", uint64(maxID)), "the number is too large")
		}
		if count++; count == 1 {
			first = i
		}
	}
	switch {
	case b.width > 0 && count != b.width:
		return 0, refuse(text, from, fmt.Sprintf("exactly %d", b.width), "%d digits of %s", count, b.radix.name())
	case count == 0:
		return 0, refuse(text, from, "at least 1", "no digits of %s", b.radix.name())
	case b.width == 0 && count > 1 && table[text[first]] == 0:
		return 0, refuse(text, first, "none", "zeros in front of the number")
	}
	return n, nil
}
