package finding

import (
	"fmt"
	"strings"

	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/internal/problem"
	"github.com/proxima-mesh/proxima/internal/registry"
)

// Registries is what is wrong with what clients of registries registered.
func Registries(all []registry.Trouble) []admin.Problem {
	var out []admin.Problem
	for _, t := range all {
		text, fix := troubleText(t)
		out = append(out, warning(problem.RegistryTrouble, object{name: string(t.Protocol)}, text, fix))
	}
	return out
}

// troubleText says what is wrong, and what to do.
func troubleText(t registry.Trouble) (text, fix string) {
	named := ""
	if len(t.Examples) > 0 {
		named = ": " + strings.Join(t.Examples, ", ")
	}
	switch t.Reason {
	case registry.NotServed:
		return fmt.Sprintf("%d instances came by %s, which is not served here%s", t.Count, t.Protocol, named),
			fmt.Sprintf("start the control plane with --%s-port, or delete these Dataplanes", t.Protocol)
	case registry.Orphaned:
		return fmt.Sprintf("%d instances of %s wait for their clients to come back%s", t.Count, t.Protocol, named),
			fmt.Sprintf("those that do not are deleted after %s; do clients reach the control plane?", registry.DefaultGrace)
	case registry.Loopback:
		return fmt.Sprintf("%d instances of %s have loopback addresses, which other machines do not reach%s", t.Count, t.Protocol, named),
			"have their clients register an address by which others reach them"
	case registry.NameTaken:
		return fmt.Sprintf("%d instances of %s are not selected by the Service of their name%s", t.Count, t.Protocol, named),
			"have the Service select the label " + registry.LabelService + ", or rename one of both"
	case registry.Full:
		return fmt.Sprintf("%d clients of %s are connected, nearly as many as are admitted", t.Count, t.Protocol),
			"raise the limit of open files, or add an instance of the control plane"
	case registry.QuotaUsed:
		return fmt.Sprintf("%d nodes that clients of %s have beside services take nearly all of their quota, or all", t.Count, t.Protocol),
			"raise --zookeeper-extra-quota at each instance of the control plane, or delete nodes"
	}
	return fmt.Sprintf("%s of %d instances of %s%s", t.Reason, t.Count, t.Protocol, named), "upgrade this program to the control plane's version"
}
