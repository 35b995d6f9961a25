package cli

import (
	"strings"

	"github.com/spf13/pflag"

	"github.com/proxima-mesh/proxima/internal/identity"
)

// boundFlags limit what a new token registers.
type boundFlags struct {
	namespaces, addresses []string
	labels                string
}

func (b *boundFlags) add(f *pflag.FlagSet) {
	f.StringSliceVar(&b.namespaces, "namespaces", nil, "namespaces in which a node registers workloads; '*': all (default: default)")
	f.StringVar(&b.labels, "labels", "", "labels, as in app=web,app=api, that registered workloads must have; several values of a key are alternatives (default: any)")
	f.StringSliceVar(&b.addresses, "addresses", nil, "ranges that addresses of the node and its workloads must lie in (default: the machine's own addresses)")
}

// bounds for a token of a kind, checked.
func (b *boundFlags) bounds(kind identity.Kind) (identity.Bounds, error) {
	out := identity.Bounds{Namespaces: b.namespaces}
	var err error
	if b.labels != "" {
		if out.Labels, err = identity.ParseLabels(strings.Split(b.labels, ",")); err != nil {
			return out, usagef("--labels: %w", err)
		}
	}
	if out.Addresses, err = identity.ParseAddresses(b.addresses); err != nil {
		return out, usagef("--addresses %w", err)
	}
	if err := identity.CheckBounds(kind, out); err != nil {
		return out, usagef("%w", err)
	}
	return out, nil
}

// registers says what a token may register; "-" for kinds that register nothing.
func registers(t identity.TokenInfo) string {
	var parts []string
	switch t.Kind {
	case identity.Node:
		where := strings.Join(t.Namespaces, ",")
		if where == "" {
			where = "default"
		}
		parts = append(parts, where)
	case identity.Workload:
		namespace, _, _ := strings.Cut(t.Name, "/")
		parts = append(parts, namespace)
	default:
		return "-"
	}
	parts = append(parts, t.LabelTexts()...)
	for _, p := range t.Addresses {
		parts = append(parts, p.String())
	}
	return strings.Join(parts, " ")
}
