package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// target is what the arguments of get, describe and delete name.
type target struct {
	kind *resource.Descriptor
	// names of objects; none: all of the kind.
	names []string
}

// parseTarget reads KIND, KIND NAME… or KIND/NAME….
func parseTarget(args []string) (target, error) {
	word, name, joined := strings.Cut(args[0], "/")
	d, err := findKind(word)
	if err != nil {
		return target{}, err
	}
	t := target{kind: d, names: args[1:]}
	if joined {
		t.names = []string{name}
		for _, arg := range args[1:] {
			word, name, ok := strings.Cut(arg, "/")
			other, err := findKind(word)
			if !ok || err != nil || other.Kind != d.Kind {
				return t, usagef("%q after %q: use KIND NAME… or KIND/NAME…, with one kind", arg, args[0])
			}
			t.names = append(t.names, name)
		}
	}
	for _, name := range t.names {
		if name == "" || strings.Contains(name, "/") {
			return t, usagef("%q is not a name: use KIND NAME… or KIND/NAME…", name)
		}
	}
	return t, nil
}

// findKind by plural, singular or short name, with the group behind a dot where
// several kinds share a name (events.events.k8s.io).
func findKind(word string) (*resource.Descriptor, error) {
	name, group, _ := strings.Cut(strings.ToLower(word), ".")
	for _, d := range kind.All() {
		if group != "" && group != d.Kind.Group {
			continue
		}
		if name == d.Resource || name == d.Singular || slices.Contains(d.ShortNames, name) {
			return d, nil
		}
	}
	return nil, &hintError{
		err:  usagef("unknown kind %q", word),
		hint: "known kinds: " + strings.Join(kindNames(), ", "),
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
