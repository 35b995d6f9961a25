package version

import (
	"strings"

	semantic "k8s.io/apimachinery/pkg/util/version"
)

// Older reports whether one version comes before another (semver.org, section 11). Versions that
// are none, as those of development builds, are neither older nor newer.
func Older(one, than string) bool {
	a, err := semantic.ParseSemantic(strings.TrimPrefix(one, "v"))
	if err != nil {
		return false
	}
	b, err := semantic.ParseSemantic(strings.TrimPrefix(than, "v"))
	return err == nil && a.LessThan(b)
}
