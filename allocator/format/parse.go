package format

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/march-id/march/allocator/period"
)

// maxDescription is the most bytes of a description.
const maxDescription = 512

// part is one part of a description: a name, and arguments in parentheses.
type part struct {
	name   string
	offset int
	args   []argument
}

// argument is a word, or a text in quotes.
type argument struct {
	text   string
	offset int
}

// lexer reads a description:
//
//	description = part { "|" part }
//	part        = name [ "(" argument { "," argument } ")" ]
//	argument    = word | quoted
//
// A word has printable ASCII other than space ( ) , | " and \. In quotes all printable
// ASCII is allowed, with \" for " and \\ for \. White space between these counts
// for nothing.
type lexer struct {
	text string
	at   int
}

func (l *lexer) fail(offset int, problem string, args ...any) error {
	return &SyntaxError{Description: l.text, Offset: offset, Problem: fmt.Sprintf(problem, args...)}
}

func (l *lexer) space() {
	for l.at < len(l.text) && l.text[l.at] == ' ' {
		l.at++
	}
}

// next returns the byte at the place, after white space, and 0 at the end.
func (l *lexer) next() byte {
	if l.space(); l.at < len(l.text) {
		return l.text[l.at]
	}
	return 0
}

// found names what stands at the place.
func (l *lexer) found() string {
	if l.at >= len(l.text) {
		return "the end"
	}
	return character(l.text, l.at)
}

func isWord(c byte) bool {
	return c > ' ' && c <= '~' && strings.IndexByte(`(),|"\`, c) < 0
}

// parts returns all parts of the description.
func (l *lexer) parts() ([]part, error) {
	if len(l.text) > maxDescription {
		return nil, l.fail(maxDescription, "%d bytes; allowed: up to %d", len(l.text), maxDescription)
	}
	var parts []part
	for {
		p, err := l.part()
		if err != nil {
			return nil, err
		}
		parts = append(parts, p)
		switch l.next() {
		case 0:
			if l.at < len(l.text) {
				return nil, l.fail(l.at, "%s; allowed: printable ASCII", l.found())
			}
			return parts, nil
		case '|':
			l.at++
		default:
			return nil, l.fail(l.at, "%s after %s; allowed: | and another part, or the end", l.found(), p.name)
		}
	}
}

func (l *lexer) part() (part, error) {
	l.space()
	p := part{offset: l.at}
	for l.at < len(l.text) && isName(l.text[l.at]) {
		l.at++
	}
	if p.name = l.text[p.offset:l.at]; p.name == "" {
		return p, l.fail(l.at, "%s in place of a part; allowed: %s", l.found(), names())
	}
	if l.next() != '(' {
		return p, nil
	}
	for l.at++; ; l.at++ {
		a, err := l.argument(p.name)
		if err != nil {
			return p, err
		}
		p.args = append(p.args, a)
		switch l.next() {
		case ')':
			l.at++
			return p, nil
		case ',':
		default:
			return p, l.fail(l.at,
				"%s in the arguments of %s; allowed: , or ) (other characters in quotes)", l.found(), p.name)
		}
	}
}

func isName(c byte) bool { return c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-' }

func (l *lexer) argument(name string) (argument, error) {
	quoted := l.next() == '"'
	a := argument{offset: l.at}
	if !quoted {
		for l.at < len(l.text) && isWord(l.text[l.at]) {
			l.at++
		}
		if a.text = l.text[a.offset:l.at]; a.text == "" {
			return a, l.fail(l.at,
				"%s in place of an argument of %s; allowed: a word, or a text in quotes", l.found(), name)
		}
		return a, nil
	}
	var b strings.Builder
	for l.at++; l.at < len(l.text); l.at++ {
		switch c := l.text[l.at]; {
		case c == '"':
			l.at++
			a.text = b.String()
			return a, nil
		case c < ' ' || c > '~':
			return a, l.fail(l.at, "%s in quotes; allowed: printable ASCII", l.found())
		case c == '\\':
			if l.at++; l.at >= len(l.text) || l.text[l.at] != '"' && l.text[l.at] != '\\' {
				return a, l.fail(l.at, `%s after \; allowed: " and \`, l.found())
			}
			fallthrough
		default:
			b.WriteByte(l.text[l.at])
		}
	}
	return a, l.fail(a.offset, "quotes that do not end")
}

// quote returns an argument as descriptions have it.
func quote(text string) string {
	for i := range len(text) {
		if !isWord(text[i]) {
			return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(text) + `"`
		}
	}
	if text == "" {
		return `""`
	}
	return text
}

// stage is where in a description a part may stand.
type stage uint8

const (
	atLeft  stage = iota // texts left of the number
	atSteps              // permutations of the number
	atBody               // the number itself
	atCheck              // its check character
	atRight              // the text right of it
)

// kind is what the parser knows of a part of some name.
type kind struct {
	stage   stage
	usage   string // the arguments, for messages
	min     int    // of arguments
	max     int
	compile func(*compiler, part) (arguments []string, err error)
}

// kinds are all parts by name.
var kinds map[string]kind

func init() { // compile functions refer to it
	kinds = map[string]kind{
		"prefix":          {atLeft, "prefix(TEXT)", 1, 1, (*compiler).prefix},
		"date":            {atLeft, "date(PATTERN) or date(PATTERN, DELIMITER)", 1, 2, (*compiler).date},
		"group":           {atLeft, "group(PATTERN) or group(PATTERN, DELIMITER)", 1, 2, (*compiler).date},
		"period":          {atSteps, "period(day|month|year, DIGITS)", 2, 2, (*compiler).period},
		"reverse":         {atSteps, "reverse or reverse(BITS)", 0, 1, (*compiler).reverse},
		"opaque":          {atSteps, "opaque(KEY, SIZE) or opaque(KEY, SIZE, TWEAK)", 2, 3, (*compiler).opaque},
		"decimal":         {atBody, "decimal or decimal(DIGITS)", 0, 1, (*compiler).number},
		"radix62":         {atBody, "radix62 or radix62(DIGITS)", 0, 1, (*compiler).number},
		"radix36":         {atBody, "radix36 or radix36(DIGITS)", 0, 1, (*compiler).number},
		"crockford":       {atBody, "crockford or crockford(DIGITS)", 0, 1, (*compiler).number},
		"friendly":        {atBody, "friendly(PRESET or BITS, ZONE, ...)", 2, 6, (*compiler).friendly},
		"sortable":        {atBody, "sortable(62) or sortable(36)", 1, 1, (*compiler).sortable},
		"luhn":            {atCheck, "luhn", 0, 0, (*compiler).check},
		"damm":            {atCheck, "damm", 0, 0, (*compiler).check},
		"mod37-36":        {atCheck, "mod37-36", 0, 0, (*compiler).check},
		"crockford-check": {atCheck, "crockford-check", 0, 0, (*compiler).check},
		"suffix":          {atRight, "suffix(TEXT)", 1, 1, (*compiler).suffix},
	}
}

// names lists the parts in the order in which they may stand.
func names() string {
	all := slices.Collect(maps.Keys(kinds))
	slices.SortFunc(all, func(a, b string) int {
		if kinds[a].stage != kinds[b].stage {
			return int(kinds[a].stage) - int(kinds[b].stage)
		}
		return strings.Compare(a, b)
	})
	return strings.Join(all, ", ")
}

// compiler makes a format of parts.
type compiler struct {
	lexer
	format *Format
	keys   []Key
	stage  stage
	seen   map[string]bool
}

// Parse reads a description such as `prefix(ORD-) | radix62(11)`. The package's
// documentation lists the parts. A format with an opaque part whose key is not among keys
// is sound, but neither writes nor reads texts. The errors are *SyntaxError.
func Parse(description string, keys ...Key) (*Format, error) {
	c := &compiler{lexer: lexer{text: description}, format: &Format{}, keys: keys, seen: make(map[string]bool)}
	parts, err := c.parts()
	if err != nil {
		return nil, err
	}
	canonical := make([]string, len(parts))
	for i, p := range parts {
		if canonical[i], err = c.add(p); err != nil {
			return nil, err
		}
	}
	if c.stage < atBody {
		return nil, c.fail(len(description), "no part writes the number; allowed at the end: %s", namesOf(atBody))
	}
	if err := c.fit(parts); err != nil {
		return nil, err
	}
	c.format.description = strings.Join(canonical, " | ")
	c.format.complete()
	return c.format, nil
}

// namesOf lists the parts of a stage.
func namesOf(s stage) string {
	var all []string
	for name, k := range kinds {
		if k.stage == s {
			all = append(all, name)
		}
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

// add compiles a part, and returns it as String prints it.
func (c *compiler) add(p part) (string, error) {
	k, known := kinds[p.name]
	switch {
	case !known:
		return "", c.fail(p.offset, "%s is no part; allowed: %s", short(p.name), names())
	case k.stage < c.stage, k.stage == atBody && c.stage == atBody:
		return "", c.fail(p.offset,
			"%s stands too far right; allowed order: prefix, date and group; period, reverse and opaque; one number; "+
				"one check; suffix", p.name)
	case c.seen[p.name] && p.name != "prefix", k.stage == atCheck && c.stage == atCheck:
		return "", c.fail(p.offset, "%s is one too many; allowed: one", p.name)
	case k.stage > atBody && c.stage < atBody:
		return "", c.fail(p.offset,
			"%s stands left of the number; allowed: right of one of %s", p.name, namesOf(atBody))
	case len(p.args) < k.min || len(p.args) > k.max:
		return "", c.fail(p.offset, "%s has %d arguments; allowed: %s", p.name, len(p.args), k.usage)
	}
	c.stage, c.seen[p.name] = k.stage, true
	arguments, err := k.compile(c, p)
	if err != nil || len(arguments) == 0 {
		return p.name, err
	}
	for i := range arguments {
		arguments[i] = quote(arguments[i])
	}
	return p.name + "(" + strings.Join(arguments, ", ") + ")", nil
}

// maxText is the most characters of a prefix, suffix or delimiter.
const maxText = 64

func (c *compiler) literal(a argument, least int) (string, error) {
	if len(a.text) < least || len(a.text) > maxText {
		return "", c.fail(a.offset, "a text of %d characters; allowed: %d to %d", len(a.text), least, maxText)
	}
	return a.text, nil
}

func (c *compiler) prefix(p part) ([]string, error) {
	text, err := c.literal(p.args[0], 1)
	c.format.left = append(c.format.left, piece{literal: text})
	return []string{text}, err
}

func (c *compiler) suffix(p part) (_ []string, err error) {
	c.format.right, err = c.literal(p.args[0], 1)
	return []string{c.format.right}, err
}

// date compiles date and group. They differ in what they are called in CosId, whose group
// is the name of a period.
func (c *compiler) date(p part) ([]string, error) {
	parsed, err := parsePattern(p.args[0].text)
	if err != nil {
		return nil, c.fail(p.args[0].offset, "%v; allowed: %s", err, patternAllowed)
	}
	parsed.delimiter = "-"
	arguments := []string{parsed.text}
	if len(p.args) == 2 {
		if parsed.delimiter, err = c.literal(p.args[1], 0); err != nil {
			return nil, err
		}
		if parsed.delimiter != "-" {
			arguments = append(arguments, parsed.delimiter)
		}
	}
	c.format.left = append(c.format.left, piece{pattern: &parsed})
	c.format.unit = max(c.format.unit, parsed.unit)
	return arguments, nil
}

// integer reads a number without a sign and zeros in front.
func (c *compiler) integer(a argument, what string, least, most int) (int, error) {
	n, err := strconv.Atoi(a.text)
	if err != nil || n < least || n > most || strconv.Itoa(n) != a.text {
		return 0, c.fail(a.offset, "%s: %s; allowed: %d to %d", what, short(a.text), least, most)
	}
	return n, nil
}

func (c *compiler) period(p part) ([]string, error) {
	u := period.ParseUnit(p.args[0].text)
	if u == noUnit {
		return nil, c.fail(p.args[0].offset, "period of a %s; allowed: day, month, year", short(p.args[0].text))
	}
	if len(c.format.permutations) > 0 {
		return nil, c.fail(p.offset,
			"period stands right of a permutation; allowed: left of it, as it reads the ID itself")
	}
	digits, err := c.integer(p.args[1], "digits", 1, u.MaxDigits())
	if err != nil {
		return nil, err
	}
	c.format.period = period.Period{Unit: u, Digits: digits}
	return []string{u.String(), p.args[1].text}, nil
}

func (c *compiler) reverse(p part) ([]string, error) {
	bits := 63
	if len(p.args) == 1 {
		var err error
		if bits, err = c.integer(p.args[0], "bits", 1, 63); err != nil {
			return nil, err
		}
	}
	c.format.permutations = append(c.format.permutations, reverse(bits))
	if bits == 63 {
		return nil, nil
	}
	return []string{strconv.Itoa(bits)}, nil
}

func (c *compiler) opaque(p part) ([]string, error) {
	name := p.args[0]
	if !isKeyName(name.text) {
		return nil, c.fail(name.offset,
			"key %s; allowed: 1 to 63 of a-z, 0-9, '.', '_' and '-', a letter or digit first", short(name.text))
	}
	size, ok := parseSize(p.args[1].text)
	if !ok {
		return nil, c.fail(p.args[1].offset, "size %s; allowed: %d to 2^63, as a number, 10^N or 2^N",
			short(p.args[1].text), leastOpaque)
	}
	arguments, tweak := []string{name.text, sizeString(size)}, ""
	if len(p.args) == 3 {
		var err error
		if tweak, err = c.literal(p.args[2], 1); err != nil {
			return nil, err
		}
		arguments = append(arguments, tweak)
	}
	o := newOpaque(name.text, size, tweak)
	for _, k := range c.keys {
		if k.name != name.text {
			continue
		}
		if err := o.unlock(k); err != nil {
			return nil, err
		}
	}
	c.format.permutations = append(c.format.permutations, o)
	return arguments, nil
}

// parseSize reads 10^N, 2^N or a number.
func parseSize(text string) (uint64, bool) {
	var n uint64
	if base, exponent, found := strings.Cut(text, "^"); found {
		e, err := strconv.Atoi(exponent)
		if err != nil || e < 1 || e > 63 || strconv.Itoa(e) != exponent || base != "2" && (base != "10" || e > 18) {
			return 0, false
		}
		n = 1 << e
		if base == "10" {
			n = radix10.largest(e) + 1
		}
	} else {
		var err error
		if n, err = strconv.ParseUint(text, 10, 64); err != nil || strconv.FormatUint(n, 10) != text {
			return 0, false
		}
	}
	return n, n >= leastOpaque && n <= maxID+1
}

// sizeString prints a size in its shortest form.
func sizeString(n uint64) string {
	if n&(n-1) == 0 {
		return "2^" + strconv.Itoa(len(strconv.FormatUint(n, 2))-1)
	}
	text := strconv.FormatUint(n, 10)
	if text == "1"+strings.Repeat("0", len(text)-1) {
		return "10^" + strconv.Itoa(len(text)-1)
	}
	return text
}

// fit checks that each permutation's results fit the next one, and that the texts have all of the
// period. So every value of the domain has a text of its own.
func (c *compiler) fit(parts []part) error {
	f := c.format
	var at *part // the part of the number before
	largest, i := uint64(0), 0
	for k := range parts {
		p := &parts[k]
		room := f.body.largest()
		switch kinds[p.name].stage {
		case atSteps:
			if p.name == "period" {
				room = uint64(f.period.Size()) - 1
				break
			}
			room = f.permutations[i].largest()
			i++
		case atBody:
		default:
			continue
		}
		if at != nil && (f.friendly != nil || f.sortable != nil) {
			return c.fail(at.offset, "%s with %s; allowed with: crockford, decimal, radix36, radix62", at.name, p.name)
		}
		if at != nil && largest > room {
			return c.fail(p.offset,
				"%s has room for 0 to %d, and %s makes up to %d; allowed: more room, or a smaller %s",
				p.name, room, at.name, largest, at.name)
		}
		at, largest = p, room
	}
	for k := range parts {
		switch p := &parts[k]; {
		case p.name != "period" || f.unit == f.period.Unit:
		case f.unit == noUnit:
			return c.fail(p.offset,
				"no text shows the %v; allowed: with a date or group part of the same unit", f.period.Unit)
		default:
			return c.fail(p.offset,
				"the texts show the %v, and the ID has the %v; allowed: with a date or group part of the same unit",
				f.unit, f.period.Unit)
		}
	}
	return nil
}
