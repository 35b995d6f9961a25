package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Limits of a RegistryConfig.
const (
	// MaxRegistryContent is the most that its content may have, in bytes.
	MaxRegistryContent = 1 << 20
	// MaxRegistryVersions and MaxRegistryHistory bound the earlier versions that are kept: by their
	// number, and by the bytes of their contents.
	MaxRegistryVersions = 30
	MaxRegistryHistory  = 256 << 10
)

// DefaultRegistryGroup of a RegistryConfig that names none.
const DefaultRegistryGroup = "DEFAULT_GROUP"

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// RegistryConfig is an entry of the configuration that clients of registries read, follow and write:
// as a configuration of Nacos, or a node of ZooKeeper. What Dubbo stores of its applications is in
// such entries, too.
type RegistryConfig struct {
	metav1.TypeMeta `json:",inline"`
	// Standard object's metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// The entry.
	Spec RegistryConfigSpec `json:"spec"`
	// What the control plane keeps of the entry.
	// +optional
	Status RegistryConfigStatus `json:"status,omitempty"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// RegistryConfigList is a list of RegistryConfigs.
type RegistryConfigList struct {
	metav1.TypeMeta `json:",inline"`
	// Standard list metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	// The RegistryConfigs.
	Items []RegistryConfig `json:"items"`
}

// RegistryConfigSpec is an entry. Group and dataId name it; they do not change.
type RegistryConfigSpec struct {
	// Group of the entry. Empty: DEFAULT_GROUP.
	// +optional
	// +default="DEFAULT_GROUP"
	Group string `json:"group,omitempty"`
	// DataID is the name of the entry in its group.
	DataID string `json:"dataId"`
	// Content, at most 1 MiB.
	// +optional
	Content string `json:"content,omitempty"`
	// Type of the content, as clients name it: text, json, xml, yaml, html, properties or toml.
	// Empty: text.
	// +optional
	Type string `json:"type,omitempty"`
	// Application that the entry is of, as its writer says.
	// +optional
	Application string `json:"application,omitempty"`
	// Description of the entry.
	// +optional
	Description string `json:"description,omitempty"`
	// Tags of the entry.
	// +optional
	// +listType=set
	Tags []string `json:"tags,omitempty"`
}

// RegistryConfigStatus is set by the control plane with each write.
type RegistryConfigStatus struct {
	// MD5 of the content, in lower-case hexadecimal digits, by which clients compare.
	// +optional
	MD5 string `json:"md5,omitempty"`
	// History has the newest earlier versions: at most 30, and at most 256 KiB of content.
	// +optional
	// +listType=atomic
	History []RegistryConfigVersion `json:"history,omitempty"`
}

// RegistryConfigVersion is an earlier version of an entry.
type RegistryConfigVersion struct {
	// Generation of the object then.
	Generation int64 `json:"generation"`
	// Content then.
	// +optional
	Content string `json:"content,omitempty"`
	// Type of the content then.
	// +optional
	Type string `json:"type,omitempty"`
	// MD5 of the content.
	MD5 string `json:"md5"`
}
