package version

import (
	"strings"

	"golang.org/x/mod/semver"
)

// Older reports whether one version comes before another (semver.org, section 11). Versions that
// are none, as those of development builds, are neither older nor newer.
func Older(one, than string) bool {
	one, than = "v"+strings.TrimPrefix(one, "v"), "v"+strings.TrimPrefix(than, "v")
	return semver.IsValid(one) && semver.IsValid(than) && semver.Compare(one, than) < 0
}
