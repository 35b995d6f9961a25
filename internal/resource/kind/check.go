package kind

import (
	"fmt"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	netutils "k8s.io/utils/net"
)

// checkMeta checks the metadata of an object that is created, or, if old is not
// nil, updated.
func checkMeta(obj metav1.Object, old metav1.Object, namespaced bool, name validation.ValidateNameFunc) field.ErrorList {
	path := field.NewPath("metadata")
	var errs field.ErrorList
	if old != nil {
		errs = validation.ValidateObjectMetaAccessorUpdate(obj, old, path)
	} else {
		errs = validation.ValidateObjectMetaAccessor(obj, namespaced, name, path)
	}
	for i, f := range obj.GetFinalizers() {
		errs = append(errs, checkFinalizer(path.Child("finalizers").Index(i), f)...)
	}
	return errs
}

// checkMetaOf is checkMeta for a typed old object, which is nil on create.
func checkMetaOf[T interface {
	comparable
	metav1.Object
}](obj, old T, namespaced bool, name validation.ValidateNameFunc) field.ErrorList {
	var missing T
	if old == missing {
		return checkMeta(obj, nil, namespaced, name)
	}
	return checkMeta(obj, old, namespaced, name)
}

// checkFinalizer requires names with a domain, except Kubernetes' own three.
func checkFinalizer(path *field.Path, name string) field.ErrorList {
	switch name {
	case string(corev1.FinalizerKubernetes), metav1.FinalizerOrphanDependents, metav1.FinalizerDeleteDependents:
		return nil
	}
	if strings.Contains(name, "/") {
		return nil
	}
	return field.ErrorList{field.Invalid(path, name, "name is neither a standard finalizer name nor is it fully qualified")}
}

// invalid makes an error of each message.
func invalid(path *field.Path, value any, messages []string) field.ErrorList {
	var errs field.ErrorList
	for _, m := range messages {
		errs = append(errs, field.Invalid(path, value, m))
	}
	return errs
}

func checkLabel(path *field.Path, value string) field.ErrorList {
	return invalid(path, value, utilvalidation.IsDNS1123Label(value))
}

func checkSubdomain(path *field.Path, value string) field.ErrorList {
	return invalid(path, value, utilvalidation.IsDNS1123Subdomain(value))
}

func checkQualifiedName(path *field.Path, value string) field.ErrorList {
	return invalid(path, value, utilvalidation.IsQualifiedName(value))
}

func checkPort(path *field.Path, port int32) field.ErrorList {
	return invalid(path, port, utilvalidation.IsValidPortNum(int(port)))
}

// checkPortRef checks a port that is given by number or by name.
func checkPortRef(path *field.Path, port intstr.IntOrString) field.ErrorList {
	switch port.Type {
	case intstr.Int:
		return invalid(path, port.IntValue(), utilvalidation.IsValidPortNum(port.IntValue()))
	case intstr.String:
		return invalid(path, port.StrVal, utilvalidation.IsValidPortName(port.StrVal))
	}
	return field.ErrorList{field.InternalError(path, fmt.Errorf("unknown type %d of port", port.Type))}
}

// checkProtocol checks a transport protocol of a port.
func checkProtocol(path *field.Path, protocol corev1.Protocol) field.ErrorList {
	switch protocol {
	case corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP:
		return nil
	case "":
		return field.ErrorList{field.Required(path, "")}
	}
	return field.ErrorList{field.NotSupported(path, protocol,
		[]corev1.Protocol{corev1.ProtocolSCTP, corev1.ProtocolTCP, corev1.ProtocolUDP})}
}

// checkIP checks an address of a field older than strict address parsing:
// values that the old object holds already are kept.
func checkIP(path *field.Path, value string, kept []string) field.ErrorList {
	return utilvalidation.IsValidIPForLegacyField(path, value, true, kept)
}

// loopback is whether an address may be one of the machine itself.
type loopback bool

const (
	loopbackRefused loopback = false
	loopbackAllowed loopback = true
)

// checkNoSpecialIP refuses addresses that mean something else on every machine.
func checkNoSpecialIP(path *field.Path, value string, lo loopback) field.ErrorList {
	ip := netutils.ParseIPSloppy(value)
	if ip == nil {
		return field.ErrorList{field.Invalid(path, value, "must be a valid IP address")}
	}
	var errs field.ErrorList
	if ip.IsUnspecified() {
		errs = append(errs, field.Invalid(path, value, "may not be unspecified (0.0.0.0 or ::)"))
	}
	if ip.IsLoopback() && lo == loopbackRefused {
		errs = append(errs, field.Invalid(path, value, "may not be in the loopback range (127.0.0.0/8, ::1/128)"))
	}
	if ip.IsLinkLocalUnicast() {
		errs = append(errs, field.Invalid(path, value, "may not be in the link-local range (169.254.0.0/16, fe80::/10)"))
	}
	if ip.IsLinkLocalMulticast() {
		errs = append(errs, field.Invalid(path, value, "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)"))
	}
	return errs
}

// isIPv6 is false for anything that is not an address.
func isIPv6(s string) bool {
	a, err := netip.ParseAddr(s)
	return err == nil && a.Is6() && !a.Is4In6()
}

// set collects names to find repetitions.
type set[T comparable] map[T]struct{}

// add reports whether v is new.
func (s set[T]) add(v T) bool {
	if _, ok := s[v]; ok {
		return false
	}
	s[v] = struct{}{}
	return true
}
