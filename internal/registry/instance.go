package registry

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/resource"
)

// Protocol by which an instance is registered.
type Protocol string

// The protocols. Instances of Kubernetes are endpoints of Services that no registry client
// wrote.
const (
	Nacos      Protocol = "nacos"
	Eureka     Protocol = "eureka"
	ZooKeeper  Protocol = "zookeeper"
	Kubernetes Protocol = "kubernetes"
)

// GroupName of labels and annotations of this package.
const GroupName = "registry.proxima.dev"

// Labels and annotations of Dataplanes that are instances, and of their Services.
const (
	// LabelService on a Dataplane is the name of the Service that has it as an endpoint
	// (ServiceName). The selector of that Service has it.
	LabelService = GroupName + "/service"
	// LabelProtocol on a Dataplane is the Protocol by which it is registered.
	LabelProtocol = GroupName + "/protocol"
	// LabelMirrored on a Dataplane, with the value "true", says that it is a copy of an instance
	// of another registry (KeyMirroredFrom).
	LabelMirrored = GroupName + "/mirrored"
	// LabelMetadata begins the labels that are made of metadata, so that Services can select
	// by them.
	LabelMetadata = "metadata." + GroupName + "/"
	// AnnotationInstance on a Dataplane is the record of the instance, as JSON.
	AnnotationInstance = GroupName + "/instance"
	// AnnotationOwner on an ephemeral Dataplane is the instance of the control plane that has
	// the session that keeps it alive.
	AnnotationOwner = GroupName + "/owner"
	// AnnotationRegisteredBy on a Dataplane is the user who registered it; nobody else, but
	// an administrator, changes it by a registry protocol.
	AnnotationRegisteredBy = GroupName + "/registered-by"
	// AnnotationService on a Service is the name that registry clients know it by: [GROUP@@]NAME.
	AnnotationService = GroupName + "/service"
	// AnnotationPort on a Service is the port, by name or number, that registry clients are
	// given; without it the first one.
	AnnotationPort = GroupName + "/port"
)

// PortName is that of the port of a Dataplane, and of a Service, that clients of a registry use.
const PortName = "main"

// securePortName is that of the port for TLS, where an instance has one beside the other.
const securePortName = "secure"

// Service is the name under which instances are registered.
type Service struct {
	// Namespace of Kubernetes.
	Namespace string
	// Group of Nacos; empty: its default, and that of protocols without groups.
	Group string
	Name  string
}

// groupSeparator is between group and name, as in Nacos.
const groupSeparator = "@@"

// String is NAMESPACE/[GROUP@@]NAME.
func (s Service) String() string { return s.Namespace + "/" + s.Grouped() }

// Grouped is [GROUP@@]NAME.
func (s Service) Grouped() string {
	if s.Group == "" {
		return s.Name
	}
	return s.Group + groupSeparator + s.Name
}

// ParseGrouped reads what Grouped wrote: [GROUP@@]NAME.
func ParseGrouped(namespace, text string) Service {
	if group, name, ok := strings.Cut(text, groupSeparator); ok {
		return Service{Namespace: namespace, Group: group, Name: name}
	}
	return Service{Namespace: namespace, Name: text}
}

// RPC reports whether it is the key of a single RPC service, as Dubbo registers its interfaces
// (providers:INTERFACE:VERSION:GROUP). Such a service has no Service in Kubernetes: the
// application of the instance has.
func (s Service) RPC() bool { return strings.Contains(s.Name, ":") }

// Compare orders services by namespace, group and name.
func (s Service) Compare(other Service) int {
	return cmp.Or(cmp.Compare(s.Namespace, other.Namespace), cmp.Compare(s.Group, other.Group), cmp.Compare(s.Name, other.Name))
}

// maxReadable is how much of the name of a service is in the name of an object that also has a
// hash in it; both and a hyphen are at most a label of DNS (63).
const maxReadable = 50

// ServiceName is the name of the Service of Kubernetes: that of s where it is in no group and
// its name is a label of DNS (RFC 1035), else one that is similar to it, with a hash.
func (s Service) ServiceName() string {
	if s.Group == "" && len(validation.IsDNS1035Label(s.Name)) == 0 {
		return s.Name
	}
	sum := sha256.Sum256([]byte(s.Grouped()))
	return readable(s.Name) + "-" + hex.EncodeToString(sum[:4])
}

// readable is a beginning of a label of DNS that resembles a name.
func readable(name string) string {
	text := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9':
			return r
		case r >= 'A' && r <= 'Z':
			return r - 'A' + 'a'
		}
		return '-'
	}, name)
	text = strings.Trim(text[:min(len(text), maxReadable-2)], "-")
	if text == "" || text[0] < 'a' {
		text = "s-" + text
	}
	return strings.Trim(text, "-")
}

// Instance of a service. Instances that are read are shared, and must not be changed.
type Instance struct {
	Service Service
	// ID that the client or the protocol gives it, unique in the service; empty: address, port
	// and cluster identify it.
	ID string
	// Cluster is the part of the service's instances that it belongs to, as in Nacos.
	Cluster string
	Address netip.Addr
	// Port on which it serves; 0: none, it is registered for others to see.
	Port uint16
	// SecurePort on which it serves TLS, beside Port; 0: none.
	SecurePort uint16
	// Zone it is in; empty: that of its node.
	Zone locality.Zone
	// Node that it runs on; empty: none of ours.
	Node string
	// Weight relative to other instances, as that of a Dataplane: 0 to 1000, 100 is ordinary.
	Weight int32
	// Enabled false: its clients keep their connections, and new ones go to others.
	Enabled bool
	// Healthy: it takes connections.
	Healthy bool
	// Ephemeral: it lives as long as the session that registered it.
	Ephemeral bool
	Protocol  Protocol
	Metadata  map[string]string
	// Detail is what one protocol alone knows of it, as JSON.
	Detail json.RawMessage
	// Created is when it was registered, Revision the version of its object in the store; 0: it
	// is not in the store.
	Created  time.Time
	Revision uint64
	// Remote: it stands for the instances of other sites.
	Remote bool
}

// record is what AnnotationInstance contains.
type record struct {
	Service   string            `json:"service"`
	ID        string            `json:"id,omitempty"`
	Cluster   string            `json:"cluster,omitempty"`
	Ephemeral bool              `json:"ephemeral,omitempty"`
	Metadata  map[string]string `json:"metadata,omitempty"`
	Detail    json.RawMessage   `json:"detail,omitempty"`
	// Weight and Enabled as they were registered. They tell a client that changes them from
	// one that registers again, which keeps what an operator has set.
	Weight  int32 `json:"weight"`
	Enabled bool  `json:"enabled"`
}

// Key of the instance's Dataplane. It depends on what identifies the instance alone.
func (in *Instance) Key() resource.Key {
	h := sha256.New()
	for _, part := range []string{in.Service.Group, in.Service.Name, in.Cluster, in.identity()} {
		_ = binary.Write(h, binary.BigEndian, uint32(len(part))) // a hash takes everything
		h.Write([]byte(part))
	}
	return resource.Key{
		Namespace: in.Service.Namespace,
		Name:      readable(in.Service.Name) + "-" + hex.EncodeToString(h.Sum(nil)[:6]),
	}
}

func (in *Instance) identity() string {
	if in.ID != "" {
		return in.ID
	}
	return netip.AddrPortFrom(in.Address, in.Port).String()
}

// Compare orders the instances of a service: by address, port and ID.
func (in *Instance) Compare(other *Instance) int {
	return cmp.Or(in.Address.Compare(other.Address), cmp.Compare(in.Port, other.Port), cmp.Compare(in.Cluster, other.Cluster), cmp.Compare(in.ID, other.ID))
}

// Limits of what a client registers.
const (
	// maxRecord is the most that a record may have, in bytes. All annotations of an object
	// have 256 KiB.
	maxRecord = 128 << 10
	// maxLabels are made of metadata.
	maxLabels = 16
	maxWeight = 1000
)

// check refuses what cannot be a Dataplane.
func (in *Instance) check() error {
	switch {
	case in.Service.Namespace == "":
		return fmt.Errorf("register %s: it is in no namespace", in.Service)
	case in.Service.Name == "":
		return fmt.Errorf("register an instance: the name of the service is empty")
	case !in.Address.IsValid():
		return fmt.Errorf("register an instance of %s: the address is missing", in.Service)
	case in.Address.Zone() != "":
		return fmt.Errorf("register an instance of %s: address %s has a zone, which other machines do not know", in.Service, in.Address)
	case in.Weight < 0 || in.Weight > maxWeight:
		return fmt.Errorf("register an instance of %s: weight %d is not from 0 to %d", in.Service, in.Weight, maxWeight)
	}
	return nil
}

// dataplane is the object of the instance, as it is registered.
func (in *Instance) dataplane(owner, user string, now time.Time) (*meshv1alpha1.Dataplane, error) {
	if err := in.check(); err != nil {
		return nil, err
	}
	text, err := in.text(in.Weight, in.Enabled)
	if err != nil {
		return nil, err
	}
	key := in.Key()
	d := &meshv1alpha1.Dataplane{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: key.Namespace, Name: key.Name, Labels: in.labels(),
			Annotations: map[string]string{AnnotationInstance: text},
		},
		Spec: meshv1alpha1.DataplaneSpec{
			NodeName: in.Node, Addresses: []string{in.Address.Unmap().String()},
			Weight: new(in.Weight), Enabled: new(in.Enabled), DrainSeconds: new(int32(0)),
		},
	}
	for _, p := range []meshv1alpha1.DataplanePort{{Name: PortName, Port: int32(in.Port)}, {Name: securePortName, Port: int32(in.SecurePort)}} {
		if p.Port != 0 && !slices.ContainsFunc(d.Spec.Ports, func(o meshv1alpha1.DataplanePort) bool { return o.Port == p.Port }) {
			d.Spec.Ports = append(d.Spec.Ports, p)
		}
	}
	if in.Ephemeral {
		d.Annotations[AnnotationOwner] = owner
	}
	if user != "" {
		d.Annotations[AnnotationRegisteredBy] = user
	}
	d.Status.Conditions = []metav1.Condition{in.ready(now)}
	return d, nil
}

// text of the record, with the weight and the state that the client registered.
func (in *Instance) text(weight int32, enabled bool) (string, error) {
	text, err := json.Marshal(record{
		Service: in.Service.Grouped(), ID: in.ID, Cluster: in.Cluster, Ephemeral: in.Ephemeral,
		Metadata: in.Metadata, Detail: in.Detail, Weight: weight, Enabled: enabled,
	})
	if err != nil {
		return "", fmt.Errorf("register an instance of %s: %w", in.Service, err)
	}
	if len(text) > maxRecord {
		return "", fmt.Errorf("register an instance of %s: its metadata has %d bytes, at most %d are allowed", in.Service, len(text), maxRecord)
	}
	return string(text), nil
}

func (in *Instance) labels() map[string]string {
	out := map[string]string{LabelProtocol: string(in.Protocol)}
	if !in.Service.RPC() {
		out[LabelService] = in.Service.ServiceName()
	}
	if in.Zone != "" && len(validation.IsValidLabelValue(string(in.Zone))) == 0 {
		out[corev1.LabelTopologyZone] = string(in.Zone)
	}
	if in.MirroredFrom() != "" {
		out[LabelMirrored] = "true"
	}
	left := maxLabels
	for _, key := range slices.Sorted(maps.Keys(in.Metadata)) {
		value := in.Metadata[key]
		if left == 0 {
			break
		}
		if value != "" && len(validation.IsQualifiedName(LabelMetadata+key)) == 0 && len(validation.IsValidLabelValue(value)) == 0 {
			out[LabelMetadata+key] = value
			left--
		}
	}
	return out
}

func (in *Instance) ready(now time.Time) metav1.Condition {
	c := metav1.Condition{
		Type: meshv1alpha1.DataplaneReady, Status: metav1.ConditionTrue, Reason: "Registered",
		Message: "registered by " + string(in.Protocol), LastTransitionTime: metav1.NewTime(now),
	}
	if from := in.MirroredFrom(); from != "" {
		c.Message = "imported from " + from
	}
	if !in.Healthy {
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, "Unhealthy", string(in.Protocol)+" says that it takes no connections"
	}
	return c
}

// Registered reports whether a registry client registered a Dataplane.
func Registered(d *meshv1alpha1.Dataplane) bool {
	return d != nil && d.Annotations[AnnotationInstance] != ""
}

// Parse reads the instance of a Dataplane. Its metadata and detail are of its own.
func Parse(d *meshv1alpha1.Dataplane) (*Instance, error) {
	r, err := parseRecord(d)
	if err != nil {
		return nil, err
	}
	return r.of(d)
}

// of a Dataplane, whose annotation it is. The instance shares its memory.
func (r record) of(d *meshv1alpha1.Dataplane) (*Instance, error) {
	in := &Instance{
		Service: ParseGrouped(d.Namespace, r.Service), ID: r.ID, Cluster: r.Cluster, Ephemeral: r.Ephemeral, Metadata: r.Metadata, Detail: r.Detail,
		Protocol: Protocol(d.Labels[LabelProtocol]), Zone: locality.Zone(d.Labels[corev1.LabelTopologyZone]), Node: d.Spec.NodeName,
		Weight: meshv1alpha1.DefaultWeight, Enabled: d.Spec.Enabled == nil || *d.Spec.Enabled, Created: d.CreationTimestamp.Time,
		Healthy:  d.DeletionTimestamp == nil && meta.IsStatusConditionTrue(d.Status.Conditions, meshv1alpha1.DataplaneReady),
		Revision: revisionOf(d),
	}
	if d.Spec.Weight != nil {
		in.Weight = *d.Spec.Weight
	}
	for _, p := range d.Spec.Ports {
		if p.Name == securePortName {
			in.SecurePort = uint16(p.Port)
		} else {
			in.Port = uint16(p.Port)
		}
	}
	if len(d.Spec.Addresses) == 0 {
		return nil, fmt.Errorf("dataplane %s has no address", resource.KeyOf(d))
	}
	var err error
	if in.Address, err = netip.ParseAddr(d.Spec.Addresses[0]); err != nil {
		return nil, fmt.Errorf("read address of dataplane %s: %w", resource.KeyOf(d), err)
	}
	return in, nil
}

func parseRecord(d *meshv1alpha1.Dataplane) (record, error) {
	var r record
	if err := json.Unmarshal([]byte(d.Annotations[AnnotationInstance]), &r); err != nil {
		return r, fmt.Errorf("read annotation %s of dataplane %s: %w", AnnotationInstance, resource.KeyOf(d), err)
	}
	return r, nil
}

// setReady replaces the condition Ready, whose time stays where its status does.
func setReady(d *meshv1alpha1.Dataplane, c metav1.Condition) {
	meta.SetStatusCondition(&d.Status.Conditions, c)
}
