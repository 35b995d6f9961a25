package registry

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Annotations by which a Service of Kubernetes is an application of Dubbo.
const (
	// AnnotationApplication on a Service is the application of Dubbo that it is; without it, that of
	// its name.
	AnnotationApplication = "dubbo.proxima.dev/application"
	// AnnotationInterface are the interfaces that it serves: [GROUP/]INTERFACE[:VERSION], separated by
	// commas.
	AnnotationInterface = "dubbo.proxima.dev/interface"
	// AnnotationRPCProtocol is the protocol of its port: tri, which is the default, or dubbo.
	AnnotationRPCProtocol = "dubbo.proxima.dev/protocol"
)

// Keys of the metadata of instances of Dubbo.
const (
	// KeyRevision is the revision of the metadata of the application. It is opaque; "0": it has no
	// services.
	KeyRevision = "dubbo.metadata.revision"
	// KeyStorage is where consumers find the metadata: StorageLocal or StorageRemote.
	KeyStorage   = "dubbo.metadata.storage-type"
	keyEndpoints = "dubbo.endpoints"
)

// Values of KeyStorage.
const (
	// StorageLocal: each provider serves its metadata.
	StorageLocal = "local"
	// StorageRemote: they are an entry of the configuration, named as the application, whose group
	// is the revision.
	StorageRemote = "remote"
)

// RPCService is an interface of Dubbo that an application serves.
type RPCService struct {
	Name     string            `json:"name"`
	Group    string            `json:"group,omitempty"`
	Version  string            `json:"version,omitempty"`
	Protocol string            `json:"protocol"`
	Port     int32             `json:"port,omitempty"`
	Path     string            `json:"path,omitempty"`
	Params   map[string]string `json:"params,omitempty"`
}

// matchKey names it among the services of its application: [GROUP/]NAME[:VERSION]:PROTOCOL.
func (s *RPCService) matchKey() string {
	out := s.Name
	if s.Group != "" {
		out = s.Group + "/" + out
	}
	if s.Version != "" && s.Version != "0.0.0" {
		out += ":" + s.Version
	}
	return out + ":" + s.Protocol
}

// ApplicationMetadata is what the providers of one revision of an application serve, in the form in
// which clients of Dubbo store it.
type ApplicationMetadata struct {
	Application string                `json:"app"`
	Revision    string                `json:"revision"`
	Services    map[string]RPCService `json:"services"`
}

// Interfaces that are served, in order.
func (m *ApplicationMetadata) Interfaces() []string {
	names := map[string]struct{}{}
	for _, s := range m.Services {
		names[s.Name] = struct{}{}
	}
	return slices.Sorted(maps.Keys(names))
}

// MetadataOf a Service of Kubernetes that is annotated with interfaces; nil: it is not. The revision is
// a hash of what the annotations say.
func MetadataOf(s *corev1.Service) (*ApplicationMetadata, error) {
	name, ok := NameOf(s)
	text := ""
	if ok {
		text = s.Annotations[AnnotationInterface]
	}
	if text == "" {
		return nil, nil
	}
	protocol := s.Annotations[AnnotationRPCProtocol]
	switch protocol {
	case "", "triple":
		protocol = "tri"
	case "tri", "dubbo":
	default:
		return nil, fmt.Errorf("annotation %s: %.40q is neither tri nor dubbo", AnnotationRPCProtocol, protocol)
	}
	out := &ApplicationMetadata{Application: name.Name, Services: map[string]RPCService{}}
	for part := range strings.SplitSeq(text, ",") {
		service := RPCService{Protocol: protocol}
		var grouped bool
		if service.Group, service.Name, grouped = strings.Cut(strings.TrimSpace(part), "/"); !grouped {
			service.Group, service.Name = "", service.Group
		}
		service.Name, service.Version, _ = strings.Cut(service.Name, ":")
		if service.Name == "" || strings.ContainsAny(service.Name, " /") {
			return nil, fmt.Errorf("annotation %s: %.100q is not [GROUP/]INTERFACE[:VERSION]", AnnotationInterface, part)
		}
		service.Path = service.Name
		service.Params = map[string]string{"application": name.Name, "interface": service.Name, "side": "provider"}
		for key, value := range map[string]string{"group": service.Group, "version": service.Version} {
			if value != "" {
				service.Params[key] = value
			}
		}
		out.Services[service.matchKey()] = service
	}
	described, err := json.Marshal(out) // keys of maps are in order
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(described)
	out.Revision = hex.EncodeToString(sum[:16])
	return out, nil
}

// metadataStored reports whether the metadata of a revision of an application are an entry of the
// configuration.
func (x *Index) metadataStored(namespace, application, revision string) bool {
	return StoredConfig(x.snapshot, ConfigKey{namespace, revision, application}) != nil
}

// endpointMetadata are the metadata that consumers of Dubbo need of an endpoint of a Service; nil: it is
// not an application of Dubbo, or its entry of the configuration is not written yet.
func (x *Index) endpointMetadata(s *corev1.Service, port uint16) map[string]string {
	m, err := MetadataOf(s)
	if err != nil || m == nil || !x.metadataStored(s.Namespace, m.Application, m.Revision) {
		return nil
	}
	protocol := ""
	for _, service := range m.Services {
		protocol = service.Protocol
	}
	return endpointOf(m.Revision, port, protocol)
}

// endpointOf are the metadata of an instance whose metadata are an entry of the configuration.
func endpointOf(revision string, port uint16, protocol string) map[string]string {
	return map[string]string{
		KeyRevision: revision, KeyStorage: StorageRemote,
		keyEndpoints: fmt.Sprintf(`[{"port":%d,"protocol":%q}]`, port, protocol),
	}
}

// offered is an instance as consumers see it: one of Dubbo whose metadata are stored says that they are,
// so that no consumer has to ask the provider for them.
func (x *Index) offered(in *Instance) *Instance {
	revision := in.Metadata[KeyRevision]
	if revision == "" || in.Metadata[KeyStorage] == StorageRemote || !x.metadataStored(in.Service.Namespace, in.Service.Name, revision) {
		return in
	}
	out := *in
	out.Metadata = maps.Clone(in.Metadata)
	out.Metadata[KeyStorage] = StorageRemote
	return &out
}
