package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/proxima-mesh/proxima/internal/problem"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// target is what the arguments of get, describe and delete name: objects of one
// kind.
type target struct {
	kind *resource.Descriptor
	// names of objects; none: all of the kind.
	names []string
}

// parseTargets reads KIND[,KIND…], KIND[,KIND…] NAME… or KIND/NAME…, where kinds
// may differ. There is one target for each kind, in the order in which they came.
func parseTargets(args []string) ([]target, error) {
	const forms = "use KIND NAME… or KIND/NAME…"
	if strings.Contains(args[0], "/") {
		return parseJoined(args, forms)
	}
	var targets []target
	for word := range strings.SplitSeq(args[0], ",") {
		d, err := findKind(word)
		if err != nil {
			return nil, err
		}
		if !slices.ContainsFunc(targets, func(t target) bool { return t.kind.GVK == d.GVK }) {
			targets = append(targets, target{kind: d, names: args[1:]})
		}
	}
	for _, name := range args[1:] {
		if name == "" || strings.Contains(name, "/") {
			return nil, usagef("%q is not a name: %s", name, forms)
		}
	}
	return targets, nil
}

func parseJoined(args []string, forms string) ([]target, error) {
	var targets []target
	for _, arg := range args {
		word, name, joined := strings.Cut(arg, "/")
		if !joined {
			return nil, usagef("%q after %q: %s", arg, args[0], forms)
		}
		d, err := findKind(word)
		if err != nil {
			return nil, err
		}
		if name == "" || strings.Contains(name, "/") {
			return nil, usagef("%q is not a name: %s", name, forms)
		}
		i := slices.IndexFunc(targets, func(t target) bool { return t.kind.GVK == d.GVK })
		if i < 0 {
			i = len(targets)
			targets = append(targets, target{kind: d})
		}
		targets[i].names = append(targets[i].names, name)
	}
	return targets, nil
}

// named reports whether objects are named.
func named(targets []target) bool {
	return slices.ContainsFunc(targets, func(t target) bool { return len(t.names) > 0 })
}

// findKind by plural, singular or short name, with the group behind a dot where
// several kinds share a name (events.events.k8s.io).
func findKind(word string) (*resource.Descriptor, error) {
	name, group, _ := strings.Cut(strings.ToLower(word), ".")
	for _, d := range kind.All() {
		if group != "" && group != d.GVK.Group {
			continue
		}
		if name == d.Resource || name == d.Singular || slices.Contains(d.ShortNames, name) {
			return d, nil
		}
	}
	return nil, &problem.Error{
		Code: problem.Usage,
		Err:  usagef("unknown kind %q", word),
		Hint: "known kinds: " + strings.Join(kindNames(), ", "),
	}
}

func kindNames() []string {
	var names []string
	for _, d := range kind.All() {
		if !slices.Contains(names, d.Resource) {
			names = append(names, d.Resource)
		}
	}
	slices.Sort(names)
	return names
}

// formats of output, for every command that prints objects.
var formats = []string{"table", "wide", "json", "yaml"}

func checkFormat(format string) error {
	if !slices.Contains(formats, format) {
		return usagef("-o %q: choose %s", format, oneOf(formats))
	}
	return nil
}

// oneOf writes choices as a sentence does.
func oneOf(choices []string) string {
	last := len(choices) - 1
	return fmt.Sprintf("%s or %s", strings.Join(choices[:last], ", "), choices[last])
}

func addNamespaceFlag(f *pflag.FlagSet, namespace *string) {
	f.StringVarP(namespace, "namespace", "n", "", "namespace (default: the kubeconfig's, else default)")
}

func addOutputFlag(f *pflag.FlagSet, format *string) {
	f.StringVarP(format, "output", "o", "table", oneOf(formats))
}
