package view

import (
	"maps"
	"slices"

	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/sites"
	"github.com/proxima-mesh/proxima/internal/view/wire"
)

// siteViews are what sites offer each other, encoded for all zones alike.
type siteViews struct {
	table           *sites.Table
	remotes, offers map[string][]byte
}

func newSiteViews(site string) siteViews {
	return siteViews{table: sites.NewTable(site), remotes: map[string][]byte{}, offers: map[string][]byte{}}
}

// storeSites stores what a delta says of other sites, and returns the resources that may
// have changed.
func (b *Builder) storeSites(d *catalog.Delta) []change {
	var out []change
	for _, service := range b.sites.table.Apply(d) {
		key := wire.ResourceName(service.Namespace, service.Name)
		remote, err := b.sites.table.Remote(service)
		note(b, b.sites.remotes, key, remote, err, wire.EncodeRemote)
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

// everySite are all resources of other sites, in order.
func (b *Builder) everySite(add func(typ string, names []string)) {
	add(wire.RemoteType, slices.Sorted(maps.Keys(b.sites.remotes)))
	add(wire.OfferType, slices.Sorted(maps.Keys(b.sites.offers)))
}
