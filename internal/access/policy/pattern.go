package policy

import "strings"

// pattern is a name in which * stands for any characters, also none.
type pattern struct {
	head string   // before the first star
	rest []string // between the stars, and after the last
}

func compile(text string) pattern {
	parts := strings.Split(text, "*")
	return pattern{parts[0], parts[1:]}
}

// any reports whether the pattern matches every name.
func (p pattern) any() bool {
	for _, part := range p.rest {
		if part != "" {
			return false
		}
	}
	return p.head == "" && len(p.rest) > 0
}

// exact reports whether the pattern is one name.
func (p pattern) exact() bool { return len(p.rest) == 0 }

// match reports whether a name matches. It allocates nothing.
func (p *pattern) match(name string) bool {
	// Most patterns differ in the first byte. That is on the path of every ID.
	if p.head != "" && (name == "" || name[0] != p.head[0]) || !strings.HasPrefix(name, p.head) {
		return false
	}
	last := len(p.rest) - 1
	if last < 0 {
		return name == p.head
	}
	name = name[len(p.head):]
	for _, part := range p.rest[:last] {
		at := strings.Index(name, part)
		if at < 0 {
			return false
		}
		name = name[at+len(part):]
	}
	return strings.HasSuffix(name, p.rest[last])
}

// Names is a set of names and patterns.
type Names struct {
	all      bool
	exact    map[string]bool
	patterns []pattern
	texts    []string // as they were written
}

// AnyName are all names.
var AnyName = Names{all: true}

// None reports whether a list has no name.
func (n *Names) None() bool { return len(n.texts) == 0 }

func (n *Names) add(text string) {
	n.texts = append(n.texts, text)
	switch p := compile(text); {
	case p.any():
		n.all = true
	case p.exact():
		if n.exact == nil {
			n.exact = make(map[string]bool)
		}
		n.exact[text] = true
	default:
		n.patterns = append(n.patterns, p)
	}
}

// Match reports whether a name is in the set. It allocates nothing.
func (n *Names) Match(name string) bool {
	if n.all || n.exact != nil && n.exact[name] {
		return true
	}
	for k := range n.patterns {
		if n.patterns[k].match(name) {
			return true
		}
	}
	return false
}
