package proxy

import (
	"fmt"
	"slices"
	"strings"
)

// maxInterface is the length of a name of a network interface at most (IFNAMSIZ of linux/if.h,
// without the zero at its end).
const maxInterface = 15

// Interfaces are names of network interfaces, or the beginning of such names and "*".
type Interfaces []string

// Contain reports whether an interface is one of them; the empty name, which is that of what does
// not arrive by an interface, is not.
func (i Interfaces) Contain(name string) bool {
	return name != "" && slices.ContainsFunc(i, func(pattern string) bool {
		prefix, open := strings.CutSuffix(pattern, "*")
		return open && strings.HasPrefix(name, prefix) || name == pattern
	})
}

// Check names the first one that no interface can have.
func (i Interfaces) Check() error {
	for _, pattern := range i {
		name := strings.TrimSuffix(pattern, "*")
		odd := func(r rune) bool { return r <= ' ' || r > '~' || strings.ContainsRune(`/*+"!`, r) }
		if name == "" || len(name) > maxInterface || name == "." || name == ".." || strings.ContainsFunc(name, odd) {
			return fmt.Errorf("interface %q: want a name such as cni0, or the beginning of names such as cali*", pattern)
		}
	}
	return nil
}
