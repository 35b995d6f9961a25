// Package finding decides what is a problem of a control plane and of what follows it: by its
// status, and by the conditions of objects in its tables.
//
// It owns the codes, the severity and the words of these problems. Enter at Find for all of them,
// and at OfStatus for those of a status alone, as commands have it. The status command, the doctor,
// the API and the console show what it finds, so that they cannot differ. What concerns one machine
// and its agent alone is of package doctor. It asks nobody and never blocks.
package finding

import (
	"slices"
	"strings"
	"time"

	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/problem"
)

// Finder finds problems, for one control plane. The zero value is ready for use.
type Finder struct {
	// ProbePort is the default UDP port of agents' probes, which texts name.
	ProbePort int
	// Now is the time; nil: time.Now.
	Now func() time.Time
}

// Find implements admin.ProblemFinder.
func (f Finder) Find(s *admin.Status, tables *catalog.Snapshot) []admin.Problem {
	now := f.now()
	return merged(append(f.OfStatus(s), ofTables(tables, s.Role != "global", now)...))
}

// OfStatus are the problems that a status shows.
func (f Finder) OfStatus(s *admin.Status) []admin.Problem {
	return slices.Concat(
		Store(s), Damage(s.Store), Audit(s.Audit, f.now()), Traces(s.Traces), Feed(s.Feed, f.now()), f.Machines(s), workloads(s), Zones(s.Federation, f.now()),
		tables(s), ranges(s), agents(s), Proxies(s.Proxies), silent(s), Registries(s.RegistryTroubles),
	)
}

func (f Finder) now() time.Time {
	if f.Now != nil {
		return f.Now()
	}
	return time.Now()
}

// Text of a problem in one line, with what mends it.
func Text(p admin.Problem) string {
	if p.Fix == "" {
		return p.Problem
	}
	return p.Problem + ": " + p.Fix
}

// Texts of problems, without what mends them.
func Texts(all []admin.Problem) []string {
	var out []string
	for i := range all {
		out = append(out, all[i].Problem)
	}
	return out
}

// failing makes a problem that keeps something from working.
func failing(code problem.Code, object object, text, fix string) admin.Problem {
	return admin.Problem{
		Code: string(code), Severity: admin.SeverityError, Kind: object.kind, Namespace: object.namespace, Name: object.name, Problem: text, Fix: fix,
	}
}

// warning makes a problem that will keep something from working, or may.
func warning(code problem.Code, object object, text, fix string) admin.Problem {
	p := failing(code, object, text, fix)
	p.Severity = admin.SeverityWarning
	return p
}

// object that a problem is about; the zero value: the control plane.
type object struct{ kind, namespace, name string }

// inNamespace parses NAMESPACE/NAME.
func inNamespace(kind, text string) object {
	namespace, name, ok := strings.Cut(text, "/")
	if !ok {
		namespace, name = "", text
	}
	return object{kind, namespace, name}
}

// merged are problems of which each code and object is there once: they are known by these.
func merged(all []admin.Problem) []admin.Problem {
	type id struct{ code, object string }
	at := map[id]int{}
	out := make([]admin.Problem, 0, len(all))
	for _, p := range all {
		i, ok := at[id{p.Code, p.Object()}]
		if !ok {
			at[id{p.Code, p.Object()}] = len(out)
			out = append(out, p)
			continue
		}
		o := &out[i]
		o.Problem += "; " + p.Problem
		if !strings.Contains(o.Fix, p.Fix) {
			o.Fix += "; " + p.Fix
		}
		if p.Severity == admin.SeverityError {
			o.Severity = p.Severity
		}
		if !p.Since.IsZero() && (o.Since.IsZero() || p.Since.Before(o.Since)) {
			o.Since = p.Since
		}
	}
	return out
}
