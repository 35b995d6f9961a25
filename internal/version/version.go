// Package version says what was built. It never changes at run time.
package version

import (
	"runtime"
	"runtime/debug"
)

// version is set by the linker (-X …/internal/version.version=v1.2.3).
var version = "v0.1.0-dev"

// Info about this binary.
type Info struct {
	// Version is a semantic version with a leading v.
	Version string `json:"version"`
	// Commit is the source revision, with "+changes" if the tree was not clean;
	// empty if the build did not record it.
	Commit   string `json:"commit,omitempty"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
	// Kubernetes is the release of Kubernetes whose API is served.
	Kubernetes string `json:"kubernetes"`
}

// Kubernetes release whose behaviour is served: that of the k8s.io modules in
// go.mod.
const Kubernetes = "v1.37.2"

// Get returns what is known of this binary.
func Get() Info {
	info := Info{
		Version: version, Go: runtime.Version(), Kubernetes: Kubernetes,
		Platform: runtime.GOOS + "/" + runtime.GOARCH,
	}
	if build, ok := debug.ReadBuildInfo(); ok {
		for _, s := range build.Settings {
			switch {
			case s.Key == "vcs.revision":
				info.Commit = s.Value + info.Commit
			case s.Key == "vcs.modified" && s.Value == "true":
				info.Commit += "+changes"
			}
		}
	}
	return info
}
