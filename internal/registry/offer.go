package registry

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	mcs "github.com/proxima-mesh/proxima/api/multicluster/v1beta1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/sites"
)

// keyZone of metadata is the zone of an instance, as Spring Cloud and Dubbo have it.
const keyZone = "zone"

const (
	// maxOfferedMetadata are the metadata of instances that leave a zone, in bytes of keys and
	// values. Keys that come later are left out.
	maxOfferedMetadata = 8 << 10
	// maxContent is what the metadata of a revision may be when they are not compressed, in bytes: as
	// much as an entry of the configuration.
	maxContent = 1 << 20
)

// Offer is what clients of registries in other zones are told of a Service; nil: nothing. instances are
// those of its ready endpoints that clients registered, config returns the entries of the
// configuration (nil: there is none), and before is what was offered so far: a revision of metadata is
// offered as long as an instance has it, as others would be told of each change.
func Offer(
	s *corev1.Service, instances []*Instance, config func(ConfigKey) *meshv1alpha1.RegistryConfig, before *mcs.AvailableRegistry,
) *mcs.AvailableRegistry {
	name, ok := NameOf(s)
	if !ok {
		return nil
	}
	out := &mcs.AvailableRegistry{Metadata: common(instances)}
	if text := name.Grouped(); text != s.Name {
		out.Service = text
	}
	revision := ""
	if before != nil && before.Dubbo != nil {
		revision = before.Dubbo.Revision
	}
	out.Dubbo = offerDubbo(s, name, instances, config, revision)
	if out.Service == "" && out.Metadata == nil && out.Dubbo == nil {
		return nil
	}
	return out
}

// common are the metadata that all instances have, without those of Dubbo, which are about one instance.
func common(instances []*Instance) map[string]string {
	if len(instances) == 0 {
		return nil
	}
	out := map[string]string{}
	left := maxOfferedMetadata
	for _, key := range slices.Sorted(maps.Keys(instances[0].Metadata)) {
		value := instances[0].Metadata[key]
		if strings.HasPrefix(key, "dubbo.") || key == keyZone || len(key)+len(value) > left {
			continue
		}
		if slices.ContainsFunc(instances[1:], func(in *Instance) bool { v, ok := in.Metadata[key]; return !ok || v != value }) {
			continue
		}
		out[key] = value
		left -= len(key) + len(value)
	}
	if len(out) == 0 {
		return nil
	}
	return out
}

// offerDubbo is the metadata of the revision that most instances have, or of the annotations of the
// Service; nil: none that is stored.
func offerDubbo(
	s *corev1.Service, name Service, instances []*Instance, config func(ConfigKey) *meshv1alpha1.RegistryConfig, before string,
) *mcs.AvailableDubbo {
	type candidate struct {
		count    int
		protocol string
	}
	revisions := map[string]candidate{}
	for _, in := range instances {
		revision := in.Metadata[KeyRevision]
		if revision == "" || revision == "0" {
			continue
		}
		if protocol := rpcProtocol(in); protocol != "" {
			revisions[revision] = candidate{revisions[revision].count + 1, protocol}
		}
	}
	if len(revisions) == 0 {
		if m, err := MetadataOf(s); err == nil && m != nil {
			for _, service := range m.Services {
				revisions[m.Revision] = candidate{1, service.Protocol}
			}
		}
	}
	best, content := "", []byte(nil)
	for _, revision := range slices.Sorted(maps.Keys(revisions)) {
		if best != "" && (best == before || revision != before && revisions[revision].count <= revisions[best].count) {
			continue
		}
		if o := config(ConfigKey{name.Namespace, revision, name.Name}); o != nil {
			if packed := pack(o.Spec.Content); len(packed) <= mcs.MaxAvailableContent {
				best, content = revision, packed
			}
		}
	}
	if best == "" {
		return nil
	}
	return &mcs.AvailableDubbo{Revision: best, Protocol: revisions[best].protocol, Content: content}
}

// rpcProtocol of the port of an instance; empty: it says none.
func rpcProtocol(in *Instance) string {
	var endpoints []struct {
		Port     int    `json:"port"`
		Protocol string `json:"protocol"`
	}
	if json.Unmarshal([]byte(in.Metadata[keyEndpoints]), &endpoints) != nil {
		return ""
	}
	for _, e := range endpoints {
		if e.Port == int(in.Port) {
			return e.Protocol
		}
	}
	return ""
}

// pack compresses a content. The same content is always the same bytes.
func pack(content string) []byte {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, _ = io.WriteString(w, content) // a buffer takes everything
	_ = w.Close()
	return b.Bytes()
}

// OfferedMetadata of an application of Dubbo that another zone has: its content as an entry of the
// configuration, and what that says. Errors: the content is none, or of another application.
func OfferedMetadata(application string, d *mcs.AvailableDubbo) (content string, m *ApplicationMetadata, err error) {
	r, err := gzip.NewReader(bytes.NewReader(d.Content))
	if err != nil {
		return "", nil, fmt.Errorf("metadata of application %.100q: %w", application, err)
	}
	b, err := io.ReadAll(io.LimitReader(r, maxContent+1))
	switch {
	case err != nil:
		return "", nil, fmt.Errorf("metadata of application %.100q: %w", application, err)
	case len(b) > maxContent:
		return "", nil, fmt.Errorf("metadata of application %.100q have more than %d bytes", application, maxContent)
	}
	m = &ApplicationMetadata{}
	if err := json.Unmarshal(b, m); err != nil {
		return "", nil, fmt.Errorf("metadata of application %.100q: %w", application, err)
	}
	if m.Application != application {
		return "", nil, fmt.Errorf("metadata of application %.100q are of application %.100q", application, m.Application)
	}
	if d.Revision == "" || d.Revision == "0" {
		return "", nil, errors.New("metadata without a revision")
	}
	return string(b), m, nil
}

// groupsOfOthers have no metadata of applications of Dubbo: what a group is there is their revision.
var groupsOfOthers = []string{"", meshv1alpha1.DefaultRegistryGroup, "dubbo", groupMapping}

// IsMetadata reports whether an entry of the configuration may have the metadata of a revision of an
// application of Dubbo.
func IsMetadata(o *meshv1alpha1.RegistryConfig) bool {
	return o != nil && !slices.Contains(groupsOfOthers, o.Spec.Group)
}

// StoredConfig is the entry that a client of a registry, or the control plane, has written; nil: there is none.
func StoredConfig(s *catalog.Snapshot, key ConfigKey) *meshv1alpha1.RegistryConfig {
	o, ok := s.RegistryConfigs.Get(resource.Key{Namespace: key.Namespace, Name: key.objectName()})
	if !ok || keyOfConfig(o) != key {
		return nil
	}
	return o
}

// remoteMetadata are the metadata of the instance that stands for the sites that offer a Service: what all of
// them have in common, where they are, and, for consumers of Dubbo, the revision of the site with the most
// instances whose metadata are entries here.
func (x *Index) remoteMetadata(service Service, s *corev1.Service, port uint16, offering []sites.Site) map[string]string {
	out := map[string]string{}
	names := make([]string, len(offering))
	ordered := slices.SortedStableFunc(slices.Values(offering), func(a, b sites.Site) int { return cmp.Compare(b.Instances, a.Instances) })
	for i, site := range ordered {
		names[i] = site.Name
		var offer mcs.AvailableRegistry
		if o := x.offerOf(s, site.Name); o != nil {
			offer = *o
		}
		if i == 0 {
			maps.Copy(out, offer.Metadata)
		}
		maps.DeleteFunc(out, func(key, value string) bool { v, ok := offer.Metadata[key]; return !ok || v != value })
	}
	for _, site := range ordered {
		o := x.offerOf(s, site.Name)
		if o == nil || o.Dubbo == nil || !x.metadataStored(service.Namespace, service.Name, o.Dubbo.Revision) {
			continue
		}
		maps.Copy(out, endpointOf(o.Dubbo.Revision, port, o.Dubbo.Protocol))
		break
	}
	slices.Sort(names)
	if len(names) > 0 {
		out[keyZone] = strings.Join(names, ",")
	}
	return out
}

// offerOf a site under the name of an import; nil: it says nothing.
func (x *Index) offerOf(s *corev1.Service, site string) *mcs.AvailableRegistry {
	imported, ok := sites.ImportOf(s)
	if !ok {
		return nil
	}
	for _, e := range x.snapshot.ExportsOf(resource.Key{Namespace: imported.Namespace, Name: imported.Name}) {
		if e.Labels[meshv1alpha1.LabelZone] == site && e.Status.Available != nil {
			return e.Status.Available.Registry
		}
	}
	return nil
}
