package crd

// Limits of costs and prices (package kind).
const (
	maxCost  = 1e9
	maxPrice = 1e6
	maxPairs = 64 * 64
)

func plannerLimits() map[string]Schema {
	return map[string]Schema{
		"ZoneCostsSpec": rules(
			Rule{"!has(self.region) || !has(self.world) || self.region <= self.world", "`region` must not be above the cost of `world`"},
			// Without world it is 10, or region if that is more.
			Rule{
				"!has(self.site) || self.?world.orValue(self.?region.orValue(1.0) > 10.0 ? self.region : 10.0) <= self.site",
				"`world` must not be above the cost of `site`",
			},
			Rule{"has(self.price) || !has(self.pairs) || self.pairs.all(p, !has(p.price))", "`pairs[].price` needs a currency in `price`"},
		),
		"ZoneCostsSpec.region": with(between(0, maxCost), Schema{Default: 1}),
		"ZoneCostsSpec.world":  between(0, maxCost),
		"ZoneCostsSpec.site":   between(0, maxCost),
		"ZoneCostsSpec.pairs":  atMost(maxPairs),
		"ZonePrice.currency":   {Pattern: "^[A-Z]{3}$"},
		"ZonePrice.region":     between(0, maxPrice),
		"ZonePrice.world":      between(0, maxPrice),
		"ZonePrice.site":       between(0, maxPrice),
		"ZoneCostsPair.from":   with(text(labelValue, maxLabel), notEmpty()),
		"ZoneCostsPair.to":     with(text(labelValue, maxLabel), notEmpty()),
		"ZoneCostsPair.cost":   between(0, maxCost),
		"ZoneCostsPair.price":  between(0, maxPrice),

		"TopologyHeuristicSpec": rules(Rule{
			"self.?zones.orValue('') != '' || self.?weight.orValue('') != ''", "`zones`, `weight` or both are needed",
		}),
		"TopologyHeuristicSpec.fallback": with(choice("", "All", "Fail", "None"), Schema{Default: "All"}),

		"TrafficPlanSpec.service": notEmpty(),
		"TrafficPlanSpec.version": atLeast(1),
		"PortGroup.ports":         {MinItems: ptr[int64](1)},
		"SourceZone.demand":       between(0, 1),
		"ZoneShare.share":         {Minimum: ptr(0.0), ExclusiveMinimum: true, Maximum: ptr(1.0)},
	}
}
