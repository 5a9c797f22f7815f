package yamlfile

import "github.com/goccy/go-yaml/ast"

// List returns the values of a list; a single value is a list of one. An absent node has
// none. field is its name in messages.
func (r *Reader) List(field string, node ast.Node) []ast.Node {
	switch n := node.(type) {
	case nil, *ast.NullNode:
		return nil
	case *ast.SequenceNode:
		return n.Values
	}
	if _, ok := Text(node); ok {
		return []ast.Node{node}
	}
	r.Refuse(Of(node), "%s%s; allowed: a list", named(field), what(node))
	return nil
}
