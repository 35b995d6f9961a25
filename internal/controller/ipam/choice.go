package ipam

import (
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Choice fills the holes of a Plan with addresses and ports that look free. Not
// safe for concurrent use. It may be dropped at any time: nothing is reserved.
type Choice struct {
	plan    Plan
	from    *Addresses
	cursors map[corev1.IPFamily]*Cursor
	ports   *PortCursor
	// chosen are the values of plan.Addresses and plan.Ports.
	addresses []netip.Addr
	numbers   []int32
}

// Choose makes a first choice. A *field.Error means that the user asked for
// what cannot be had (an invalid request); an error that wraps ErrFull that
// nothing is left (an internal error, as in Kubernetes).
func Choose(plan Plan, addresses *Addresses, ports *Ports) (*Choice, error) {
	c := &Choice{
		plan:      plan,
		from:      addresses,
		cursors:   map[corev1.IPFamily]*Cursor{},
		addresses: make([]netip.Addr, len(plan.Addresses)),
		numbers:   make([]int32, len(plan.Ports)),
	}
	c.plan.ClusterIPs = slices.Clone(plan.ClusterIPs)
	c.plan.NodePorts = slices.Clone(plan.NodePorts)
	for i, r := range plan.Addresses {
		if !r.Address.IsValid() {
			if c.cursors[r.Family] == nil {
				c.cursors[r.Family] = addresses.Cursor(r.Family)
			}
			if err := c.nextAddress(i); err != nil {
				return nil, err
			}
			continue
		}
		if err := addresses.Check(r.Address); err != nil {
			return nil, c.refuseAddress(r, err)
		}
		c.addresses[i] = r.Address // the Service keeps the user's spelling
	}
	// Numbers asked for go first, so that none is handed out as "any" before.
	for i, r := range plan.Ports {
		if r.Port == 0 {
			continue
		}
		if err := ports.Check(r.Port); err != nil {
			return nil, field.Invalid(r.path(), r.Port, err.Error())
		}
		c.setNumber(i, r.Port)
	}
	for i, r := range plan.Ports {
		if r.Port != 0 {
			continue
		}
		if c.ports == nil {
			c.ports = ports.Cursor()
		}
		if err := c.nextNumber(i); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// Addresses chosen: exactly those whose IPAddress objects are to be created.
func (c *Choice) Addresses() []netip.Addr { return slices.Clone(c.addresses) }

// Ports chosen: exactly those that are to be claimed.
func (c *Choice) Ports() []int32 { return slices.Clone(c.numbers) }

// Plan that is being fulfilled, holes filled.
func (c *Choice) Plan() Plan { return c.plan }

// Apply writes the choice into the Service that the plan was made of.
func (c *Choice) Apply(svc *corev1.Service) { c.plan.Apply(svc) }

// Retry replaces an address that turned out to have an owner. Errors are those
// of Choose; an address that was never chosen is an error as well.
func (c *Choice) Retry(conflict netip.Addr) error {
	i := slices.Index(c.addresses, conflict)
	if i < 0 {
		return fmt.Errorf("retry after a conflict on %s: it was not chosen", conflict)
	}
	if r := c.plan.Addresses[i]; r.Address.IsValid() {
		return c.refuseAddress(r, ErrAllocated)
	}
	return c.nextAddress(i)
}

// RetryPort is Retry for a port number.
func (c *Choice) RetryPort(conflict int32) error {
	i := slices.Index(c.numbers, conflict)
	if i < 0 {
		return fmt.Errorf("retry after a conflict on port %d: it was not chosen", conflict)
	}
	if r := c.plan.Ports[i]; r.Port != 0 {
		return field.Invalid(r.path(), r.Port, ErrPortAllocated.Error())
	}
	return c.nextNumber(i)
}

func (c *Choice) refuseAddress(r AddressRequest, err error) error {
	return field.Invalid(clusterIPsPath, c.plan.ClusterIPs, fmt.Sprintf("failed to allocate IP %v: %v", r.Address, err))
}

func (c *Choice) nextAddress(i int) error {
	family := c.plan.Addresses[i].Family
	addr, ok := c.cursors[family].Next()
	if !ok {
		return fmt.Errorf("failed to allocate a serviceIP: %w", c.from.exhausted(family))
	}
	c.addresses[i] = addr
	c.plan.ClusterIPs[c.plan.Addresses[i].Index] = addr.String()
	return nil
}

func (c *Choice) nextNumber(i int) error {
	for {
		number, ok := c.ports.Next()
		if !ok {
			return fmt.Errorf("failed to allocate %s: %w", c.plan.Ports[i], ErrFull)
		}
		// One's own numbers are not marked as taken yet.
		if !slices.Contains(c.numbers, number) {
			c.setNumber(i, number)
			return nil
		}
	}
}

func (c *Choice) setNumber(i int, number int32) {
	c.numbers[i] = number
	for _, at := range c.plan.Ports[i].Indexes {
		c.plan.NodePorts[at] = number
	}
	if len(c.plan.Ports[i].Indexes) == 0 {
		c.plan.HealthCheckNodePort = number
	}
}

// ManagedBy is the value of networkingv1.LabelManagedBy on the IPAddress objects
// of Services. Objects without it have another owner.
const ManagedBy = "ipallocator.k8s.io"

// IPAddressFor builds the object that makes a Service the owner of an address.
// Its name, and so its key, is the address in canonical form.
func IPAddressFor(addr netip.Addr, svc *corev1.Service) *networkingv1.IPAddress {
	addr = addr.Unmap()
	return &networkingv1.IPAddress{
		ObjectMeta: metav1.ObjectMeta{
			Name: addr.String(),
			Labels: map[string]string{
				networkingv1.LabelIPAddressFamily: string(familyOf(addr)),
				networkingv1.LabelManagedBy:       ManagedBy,
			},
		},
		Spec: networkingv1.IPAddressSpec{ParentRef: parentOf(svc)},
	}
}

func parentOf(svc *corev1.Service) *networkingv1.ParentReference {
	return &networkingv1.ParentReference{
		Group:     corev1.GroupName,
		Resource:  "services",
		Namespace: svc.Namespace,
		Name:      svc.Name,
	}
}
