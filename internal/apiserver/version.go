package apiserver

import (
	apiversion "k8s.io/apimachinery/pkg/version"
	"k8s.io/component-base/compatibility"
)

// The release of Kubernetes whose API is served: that of k8s.io/api in go.mod.
const (
	kubernetesVersion    = "1.37"
	kubernetesGitVersion = "v1.37.2"
)

// version is the Kubernetes version that this server behaves like. Clients parse major
// and minor as numbers and gitVersion as a semantic version.
type version struct {
	compatibility.EffectiveVersion
	own string
}

func newVersion(own string) version {
	return version{EffectiveVersion: compatibility.NewEffectiveVersionFromString(kubernetesVersion, "", ""), own: own}
}

// Info is what /version answers.
func (v version) Info() *apiversion.Info {
	info := v.EffectiveVersion.Info()
	info.GitVersion = kubernetesGitVersion + "+proxima"
	if v.own != "" {
		info.GitVersion += "." + v.own
	}
	info.GitCommit, info.GitTreeState, info.BuildDate = "", "", ""
	return info
}
