package payload

import (
	"fmt"

	"go.yaml.in/yaml/v3"
)

// countYAML parses the first document into nodes, in which an alias is not replaced
// by what it stands for, and counts them.
func countYAML(body []byte, l Limits) (int, error) {
	var root yaml.Node
	if err := yaml.Unmarshal(body, &root); err != nil {
		return 0, err
	}
	c := &counter{limits: l, anchors: map[*yaml.Node]size{}, open: map[*yaml.Node]bool{}}
	s, err := c.measure(&root, 0)
	return s.values, err
}

// size of a part of a document, aliases replaced.
type size struct{ values, height int }

type counter struct {
	limits Limits
	// anchors are the sizes of what aliases stand for.
	anchors map[*yaml.Node]size
	// open are the anchors that are being measured: an alias of one would contain
	// itself.
	open map[*yaml.Node]bool
}

// measure a node at a depth. It fails as soon as a limit is exceeded, so sizes do
// not overflow.
func (c *counter) measure(n *yaml.Node, depth int) (size, error) {
	switch n.Kind {
	case yaml.AliasNode:
		return c.alias(n, depth)
	case yaml.SequenceNode, yaml.MappingNode:
	case yaml.DocumentNode:
		if len(n.Content) == 1 {
			return c.measure(n.Content[0], depth)
		}
		return size{}, nil
	default:
		return size{values: 1}, nil
	}
	if depth++; depth > c.limits.Depth {
		return size{}, tooDeep(c.limits)
	}
	if n.Kind == yaml.MappingNode && len(n.Content)/2 > c.limits.Members {
		return size{}, tooWide(c.limits)
	}
	out := size{values: 1, height: 1}
	for i, child := range n.Content {
		s, err := c.measure(child, depth)
		if err != nil {
			return out, err
		}
		if n.Kind == yaml.MappingNode && i%2 == 0 {
			s.values-- // a key counts with its value
		}
		out.values += s.values
		out.height = max(out.height, s.height+1)
		if out.values > c.limits.Values {
			return out, tooMany(c.limits)
		}
	}
	return out, nil
}

func (c *counter) alias(n *yaml.Node, depth int) (size, error) {
	if !c.limits.Aliases {
		return size{}, &AliasError{Line: n.Line}
	}
	target := n.Alias
	s, known := c.anchors[target]
	switch {
	case c.open[target] || target == nil:
		return size{}, fmt.Errorf("line %d: the YAML alias *%s is a part of what it stands for", n.Line, n.Value)
	case known && depth+s.height > c.limits.Depth:
		return size{}, tooDeep(c.limits)
	case known:
		return s, nil
	}
	c.open[target] = true
	defer delete(c.open, target)
	s, err := c.measure(target, depth)
	if err == nil {
		c.anchors[target] = s
	}
	return s, err
}
