package policy

import "strings"

// pattern is a name in which * stands for any characters, also none.
type pattern struct {
	parts []string // between the stars
}

func compile(text string) pattern { return pattern{strings.Split(text, "*")} }

// any reports whether the pattern matches every name.
func (p pattern) any() bool {
	for _, part := range p.parts {
		if part != "" {
			return false
		}
	}
	return len(p.parts) > 1
}

// exact reports whether the pattern is one name.
func (p pattern) exact() bool { return len(p.parts) == 1 }

// match reports whether a name matches. It allocates nothing.
func (p pattern) match(name string) bool {
	first, last := p.parts[0], len(p.parts)-1
	if last == 0 {
		return name == first
	}
	if !strings.HasPrefix(name, first) {
		return false
	}
	name = name[len(first):]
	for _, part := range p.parts[1:last] {
		at := strings.Index(name, part)
		if at < 0 {
			return false
		}
		name = name[at+len(part):]
	}
	return strings.HasSuffix(name, p.parts[last])
}

// names is a set of names and patterns.
type names struct {
	all      bool
	exact    map[string]bool
	patterns []pattern
	texts    []string // as they were written
}

func (n *names) add(text string) {
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

// match reports whether a name is in the set. It allocates nothing.
func (n *names) match(name string) bool {
	if n.all || n.exact[name] {
		return true
	}
	for k := range n.patterns {
		if n.patterns[k].match(name) {
			return true
		}
	}
	return false
}
