package federation

import (
	"errors"
	"fmt"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
)

// puts decides on the resources of a response one by one.
func (r *Receiver) puts(tx *Transaction, resources []*discovery.Resource) {
	sub := tx.sub
	claimed := map[Key]string{}
	for _, res := range resources {
		// The peer has it, whether or not it is accepted.
		sub.present(res.GetName())
		put, err := r.put(sub, res)
		if other := claimed[put.Key]; err == nil && other != "" && other != put.Resource {
			err = errNameTaken(put.Key, other)
		}
		if err != nil {
			tx.invalid = append(tx.invalid, Refusal{Resource: res.GetName(), Reason: err.Error()})
			continue
		}
		if !sub.prepare(&put) {
			continue
		}
		claimed[put.Key] = put.Resource
		tx.Puts = append(tx.Puts, put)
	}
}

// present notes that the peer has a resource: a removal that was announced, or is held,
// is void.
func (f *followed) present(resource string) {
	delete(f.removed, resource)
	if c, ok := f.copies[resource]; ok {
		if g := f.guards[c.Owner]; g != nil {
			delete(g.held, resource)
		}
	}
}

// prepare completes a put by what it replaces. It reports whether there is anything to
// do.
func (f *followed) prepare(put *Put) bool {
	old, exists := f.copies[put.Resource]
	_, waits := f.waiting[put.Resource]
	_, refused := f.refused[put.Resource]
	if exists && !waits && !refused && old == put.Copy {
		return false
	}
	put.Before, put.Replaces = "", nil
	switch {
	case exists && old.Key == put.Key:
		put.Before = old.Version
	case exists:
		put.Replaces = &old // its mesh has changed, and with it its name
	}
	return true
}

func errNameTaken(key Key, resource string) error {
	return fmt.Errorf("its name %s is that of the copy of %s", key.Name, resource)
}

// put checks a resource and makes a copy of it.
func (r *Receiver) put(sub *followed, res *discovery.Resource) (Put, error) {
	if res.GetResource().GetTypeUrl() != sub.typ.Name {
		return Put{}, fmt.Errorf("the resource is a %.80q", res.GetResource().GetTypeUrl())
	}
	if res.GetVersion() == "" || len(res.GetVersion()) > maxLabelName {
		return Put{}, fmt.Errorf("invalid version %.80q", res.GetVersion())
	}
	o, err := ParseObject(res.GetResource().GetValue())
	switch {
	case err != nil:
		return Put{}, err
	case o.Resource() != res.GetName():
		return Put{}, fmt.Errorf("the object's name is %s", o.Resource())
	case sub.typ.Namespaced != (o.Namespace != ""):
		return Put{}, fmt.Errorf("namespace %q: namespaced is %t", o.Namespace, sub.typ.Namespaced)
	}
	owner, err := r.owner(sub.typ, o)
	if err != nil {
		return Put{}, err
	}
	key, err := r.key(sub.typ, owner, o)
	if err != nil {
		return Put{}, err
	}
	if other := sub.byKey[key]; other != "" && other != o.Resource() {
		return Put{}, errNameTaken(key, other)
	}
	relayed := r.config.Side == AtZone && owner.Zone != ""
	labels, annotations := o.stamp(owner, relayed, key, res.GetVersion())
	stamped := &Object{Key: key, Mesh: o.Mesh, Labels: labels, Annotations: annotations, Payload: o.Payload}
	return Put{
		Copy:   Copy{Resource: o.Resource(), Version: res.GetVersion(), Key: key, Owner: owner},
		Object: stamped,
	}, nil
}

// owner of a received object. What a zone sends belongs to that zone, whatever it says;
// of what global sends, only the objects that it relays name a zone.
func (r *Receiver) owner(t Type, o *Object) (Owner, error) {
	if r.config.Side == AtGlobal {
		return Owner{Zone: r.config.Zone}, nil
	}
	if t.Direction == GlobalToZone {
		return Owner{}, nil
	}
	zone := o.Labels[LabelZone]
	if err := checkName("zone", zone, false, true); err != nil {
		return Owner{}, err
	}
	if zone == r.config.Zone {
		return Owner{}, errors.New("it belongs to this zone, which does not take it from global")
	}
	return Owner{Zone: zone}, nil
}

// key of the copy. What global relays has the name that global gave it.
func (r *Receiver) key(t Type, owner Owner, o *Object) (Key, error) {
	key := o.Key
	if r.config.Side == AtGlobal && t.Namespaced {
		key.Namespace = r.config.Namespace
	}
	relayed := r.config.Side == AtZone && owner.Zone != ""
	if t.KeepName || relayed {
		if t.LabelName {
			return key, checkName("name", key.Name, false, true)
		}
		return key, nil
	}
	var err error
	key.Name, err = HashedName(o.Mesh, owner.Zone, o.Namespace, o.Name, t.LabelName)
	return key, err
}
