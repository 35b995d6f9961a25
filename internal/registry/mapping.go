package registry

import (
	"slices"
	"strings"
)

// groupMapping has the applications that serve an interface of Dubbo: the entry is named as the
// interface, and its content is their names, joined by commas.
const groupMapping = "mapping"

// MergeConfig is what an entry contains after a client has written it. It is what the client wrote, but
// for mappings of Dubbo: there its names are added to those that are there, as clients read and write
// them at the same time, and would lose names to each other. A name is never removed so: an operator
// writes the object.
func MergeConfig(key ConfigKey, before, written string) string {
	if key.Group != groupMapping {
		return written
	}
	var out []string
	for name := range strings.SplitSeq(before+","+written, ",") {
		if name = strings.TrimSpace(name); name != "" && !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	return strings.Join(out, ",")
}
