package format

import (
	"fmt"
	"strings"
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
