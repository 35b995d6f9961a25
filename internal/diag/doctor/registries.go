package doctor

import (
	"fmt"
	"strings"

	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/internal/diag/finding"
	"github.com/proxima-mesh/proxima/internal/problem"
)

// registries is about what clients of registries registered; ok is false where no registry is served, and nothing
// was registered.
func registries(status *admin.Status) (f Finding, ok bool) {
	if len(status.Registries)+len(status.RegistryTroubles) == 0 {
		return f, false
	}
	instances := 0
	for _, r := range status.Registries {
		instances += r.Instances
	}
	f = Finding{ID: checkRegistries, Check: "registries", Note: fmt.Sprintf("%d instances are registered", instances)}
	if problems := finding.Registries(status.RegistryTroubles); len(problems) > 0 {
		var fixes []string
		for i := range problems {
			fixes = append(fixes, problems[i].Fix)
		}
		f.fail(problem.RegistryTrouble, textOf(problems), strings.Join(fixes, "; "))
	}
	return f, true
}

// textOf problems, in one finding.
func textOf(all []admin.Problem) string { return strings.Join(finding.Texts(all), "; ") }
