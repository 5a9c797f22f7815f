package format

import "fmt"

// check is a way to find mistakes: a character after the number, made of its digits and of
// those of the period's. The zero value is none.
type check uint8

const (
	noCheck check = iota
	// luhn is ISO/IEC 7812-1 annex B: every second digit from the right is doubled, its
	// digits summed. It finds each wrong digit, and swapped neighbours but for 09 and 90.
	luhn
	// damm is H. M. Damm, Total anti-symmetrische Quasigruppen (2004): it finds each wrong
	// digit and all swapped neighbours.
	damm
	// mod37 is ISO 7064 mod 37,36, for 0-9A-Z: it finds each wrong character and nearly all
	// swapped neighbours.
	mod37
	// crockford is the check symbol of Crockford's base 32: the number mod 37.
	crockford
)

// checks are the checks by their names in descriptions.
var checks = map[string]check{"luhn": luhn, "damm": damm, "mod37-36": mod37, "crockford-check": crockford}

func (c check) name() string {
	for name, other := range checks {
		if c == other {
			return name
		}
	}
	return fmt.Sprintf("check-%d", uint8(c))
}

// radices returns the radices that the check is defined for.
func (c check) radices() []radix {
	switch c {
	case luhn, damm:
		return []radix{radix10}
	case mod37: // of Crockford's digits it would make an I, L or O now and then
		return []radix{radix10, radix36}
	}
	return []radix{radix32}
}

// quasigroup is Damm's table of order 10: weakly totally anti-symmetric, with zeros in
// the diagonal.
var quasigroup = [10][10]byte{
	{0, 3, 1, 7, 5, 9, 8, 6, 4, 2},
	{7, 0, 9, 2, 1, 5, 4, 8, 6, 3},
	{4, 2, 0, 6, 8, 7, 1, 3, 5, 9},
	{1, 7, 5, 0, 9, 8, 3, 4, 2, 6},
	{6, 1, 2, 3, 0, 4, 5, 9, 7, 8},
	{3, 6, 7, 4, 2, 0, 9, 5, 8, 1},
	{5, 8, 6, 9, 7, 2, 0, 1, 3, 4},
	{8, 9, 4, 5, 3, 6, 2, 0, 1, 7},
	{9, 4, 3, 8, 6, 1, 7, 2, 0, 5},
	{2, 5, 8, 1, 4, 3, 6, 7, 9, 0},
}

// crockfordSymbols are the 32 digits and five more.
const crockfordSymbols = digitsCrockford + "*~$=U"

// of returns the check character of characters that the check is for. n is their number,
// for crockford only.
func (c check) of(characters []byte, n uint64) byte {
	switch c {
	case luhn:
		sum := 0
		for i := range characters {
			digit := int(characters[len(characters)-1-i] - '0')
			if i%2 == 0 { // the check digit itself will be the last
				if digit *= 2; digit > 9 {
					digit -= 9
				}
			}
			sum += digit
		}
		return '0' + byte((10-sum%10)%10)
	case damm:
		interim := byte(0)
		for _, character := range characters {
			interim = quasigroup[interim][character-'0']
		}
		return '0' + interim
	case mod37:
		product := 36
		for _, character := range characters {
			sum := (product + int(values[radix36][character])) % 36
			if sum == 0 {
				sum = 36
			}
			product = sum * 2 % 37
		}
		return digits62[(37-product)%36]
	}
	return crockfordSymbols[n%37]
}

// fold returns a check character of a text as `of` returns it. Crockford's is read as his
// digits are: in any case, and I, L and O as 1, 1 and 0.
func (c check) fold(character byte) byte {
	if c != crockford {
		return character
	}
	if digit := values[radix32][character]; digit != noDigit {
		return digitsCrockford[digit]
	}
	if character == 'u' {
		return 'U'
	}
	return character
}
