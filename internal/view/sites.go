package view

import (
	"maps"
	"slices"

	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/sites"
	"github.com/proxima-mesh/proxima/internal/view/wire"
)

// siteViews are what sites offer each other, encoded for all zones alike.
type siteViews struct {
	table           *sites.Table
	remotes, offers map[string][]byte
	// plannable are the Remotes of other sites, of which a plan may send them a part.
	plannable map[string]*sites.Remote
}

func newSiteViews(site string) siteViews {
	return siteViews{
		table: sites.NewTable(site), remotes: map[string][]byte{}, offers: map[string][]byte{}, plannable: map[string]*sites.Remote{},
	}
}

// storeSites stores what a delta says of other sites, and returns the resources that may
// have changed.
func (b *Builder) storeSites(d *catalog.Delta) []change {
	var out []change
	for _, service := range b.sites.table.Apply(d) {
		key := wire.ResourceName(service.Namespace, service.Name)
		remote, err := b.sites.table.Remote(service)
		note(b, b.sites.remotes, key, remote, err, wire.EncodeRemote)
		delete(b.sites.plannable, key)
		if remote != nil && remote.External == nil {
			b.sites.plannable[key] = remote
		}
		offer, err := b.sites.table.Offer(service)
		note(b, b.sites.offers, key, offer, err, wire.EncodeOffer)
		out = append(out, change{wire.RemoteType, key}, change{wire.OfferType, key})
	}
	return out
}

// note encodes an object, or forgets it if there is none, or it cannot be encoded.
func note[T any](b *Builder, in map[string][]byte, key string, object *T, err error, encode func(*T) ([]byte, error)) {
	delete(in, key)
	var body []byte
	if err == nil && object != nil {
		body, err = encode(object)
	}
	switch {
	case err != nil:
		b.config.Logger.Error("what sites offer under the name of a service is not in the views", "service", key, "error", err)
	case body != nil:
		in[key] = body
	}
}

// remoteBody is what other sites offer, with the plan of a zone if it sends them a part.
func (b *Builder) remoteBody(zone locality.Zone, name string) []byte {
	body, remote := b.sites.remotes[name], b.sites.plannable[name]
	if body == nil || remote == nil || b.config.Split == nil {
		return body
	}
	key := catalog.Key{Namespace: remote.Service.Namespace, Name: remote.Service.Name}
	planned := remote.WithSplits(func(port string) *sites.Split { return b.config.Split(zone, key, port) })
	if planned == remote {
		return body
	}
	with, err := wire.EncodeRemote(planned)
	if err != nil { // without the plan it could be encoded
		b.config.Logger.Error("other sites of a service are sent without their plan", "zone", zone, "service", name, "error", err)
		return body
	}
	return with
}

// everySite are all resources of other sites, in order.
func (b *Builder) everySite(add func(typ string, names []string)) {
	add(wire.RemoteType, slices.Sorted(maps.Keys(b.sites.remotes)))
	add(wire.OfferType, slices.Sorted(maps.Keys(b.sites.offers)))
}
