package crd

import mesh "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"

// maxRegistryName is the most that a group, or the name of an entry, has.
const maxRegistryName = 256

// registryLimits are those of RegistryConfig.
func registryLimits() map[string]Schema {
	return map[string]Schema{
		"RegistryConfigSpec":       rules(same("group"), same("dataId")),
		"RegistryConfigSpec.group": {Default: mesh.DefaultRegistryGroup, MinLength: ptr[int64](1), MaxLength: ptr[int64](maxRegistryName)},
		"RegistryConfigSpec.dataId": {MinLength: ptr[int64](1), MaxLength: ptr[int64](maxRegistryName), Rules: []Rule{{
			"!self.startsWith('cipher-')", "an entry whose name begins with `cipher-` is a Secret, which a control plane in a cluster does not keep",
		}}},
		// The schema counts characters; the webhook counts bytes, as Validate does.
		"RegistryConfigSpec.content": {MaxLength: ptr[int64](mesh.MaxRegistryContent)},
	}
}
