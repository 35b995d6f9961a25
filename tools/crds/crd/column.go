package crd

import (
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/proxima-mesh/proxima/internal/resource"
)

// cell is where an API server finds the value of a column. It prints one value of an
// object, as it is.
type cell struct {
	path string
	typ  string // empty: string
	// description in place of the descriptor's, where the value is less.
	description string
	// worked out: no path leads to the value, and why. The column is left out.
	out string
}

// Reasons why columns are left out.
const (
	manyParts = "of several values an API server prints the first alone"
	composed  = "it is composed of several fields"
	clock     = "it is a time that passes"
	notKept   = "a cluster keeps neither sums nor earlier versions of contents"
)

func condition(name string) cell {
	return cell{path: `.status.conditions[?(@.type=="` + name + `")].status`}
}

// cells of columns, by KIND/COLUMN, or COLUMN where all kinds agree.
var cells = map[string]cell{
	"Age": {path: ".metadata.creationTimestamp", typ: "date", description: "How long ago it was created."},

	"Dataplane/Node":      {path: ".spec.nodeName"},
	"Dataplane/Ready":     condition("Ready"),
	"Dataplane/Addresses": {path: ".spec.addresses"},
	"Dataplane/Ports":     {out: manyParts},
	"Dataplane/Weight":    {path: ".spec.weight", typ: "integer"},
	"Dataplane/Mesh":      {path: ".spec.mesh"},
	"Dataplane/Zone":      {path: `.metadata.labels.topology\.kubernetes\.io/zone`},
	"Dataplane/Lease":     {path: ".status.lease.holder", description: "Who keeps the workload alive."},

	"RegistryConfig/Group":    {path: ".spec.group"},
	"RegistryConfig/Data ID":  {path: ".spec.dataId"},
	"RegistryConfig/Type":     {path: ".spec.type"},
	"RegistryConfig/Bytes":    {out: "it is a size of a value"},
	"RegistryConfig/MD5":      {out: notKept},
	"RegistryConfig/Versions": {out: notKept},

	"ZoneCosts/Region":   {path: ".spec.region", typ: "number"},
	"ZoneCosts/World":    {path: ".spec.world", typ: "number"},
	"ZoneCosts/Site":     {path: ".spec.site", typ: "number"},
	"ZoneCosts/Pairs":    {out: "it is a number of values"},
	"ZoneCosts/Status":   accepted(),
	"ZoneCosts/Services": {path: ".status.services", typ: "integer"},

	"TopologyHeuristic/Mode":     {out: composed},
	"TopologyHeuristic/Fallback": {path: ".spec.fallback"},
	"TopologyHeuristic/Status":   accepted(),
	"TopologyHeuristic/Services": {path: ".status.services", typ: "integer"},
	"TopologyHeuristic/Zones":    {path: ".spec.zones"},
	"TopologyHeuristic/Weight":   {path: ".spec.weight"},

	"TrafficPlan/Mode":    {path: ".spec.mode"},
	"TrafficPlan/Ports":   {path: ".spec.groups[0].ports", description: "The ports of the first group that is planned together."},
	"TrafficPlan/In-Zone": {path: ".spec.groups[0].expected.inZone", typ: "number", description: "The share of connections that stay in their zone, of the first group."},
	"TrafficPlan/Cost":    {path: ".spec.groups[0].expected.cost", typ: "number", description: "The mean cost of a connection, of the first group."},
	"TrafficPlan/Busiest": {path: ".spec.groups[0].expected.busiest", typ: "number", description: "The load of the busiest endpoint as a multiple of the mean, of the first group."},
	"TrafficPlan/Demand":  {path: ".spec.groups[0].demandSource", description: "Where the demand comes from that the plan of the first group was made for."},
	"TrafficPlan/Version": {path: ".spec.version", typ: "integer"},
	"TrafficPlan/Outcome": {path: ".spec.groups[0].outcome", description: "The outcome of planning, for the first group."},
	"TrafficPlan/Reason":  {path: ".spec.groups[0].reason", description: "Why the plan was published, for the first group."},

	"Mesh/mTLS":        {path: ".spec.mtls.enabledBackend", description: "The backend that signs certificates."},
	"Mesh/Passthrough": {path: ".spec.networking.outbound.passthrough", typ: "boolean"},
	"Mesh/Egress":      {path: ".spec.routing.zoneEgress", typ: "boolean"},
	"Mesh/Locality":    {path: ".spec.routing.localityAware", typ: "boolean"},
	"Mesh/Backends":    {out: manyParts},

	"ExternalService/Hosts":       {path: ".spec.hosts"},
	"ExternalService/Ports":       {out: manyParts},
	"ExternalService/Virtual-IPs": {path: ".status.virtualIPs"},
	"ExternalService/TLS":         {path: ".spec.tls.verification"},
	"ExternalService/Mesh":        {path: ".spec.mesh"},
	"ExternalService/Addresses":   {out: manyParts},
	"ExternalService/Zones":       {path: ".spec.zones"},

	"Zone/Enabled": {path: ".spec.enabled", typ: "boolean"},

	"ZoneInsight/Online":  {path: ".status.online", typ: "boolean"},
	"ZoneInsight/Version": {path: ".status.subscriptions[-1].version"},
	"ZoneInsight/Since":   {path: ".status.subscriptions[-1].connectTime", typ: "date"},
	"ZoneInsight/Held":    {out: "it is a sum"},
	"ZoneInsight/Refused": {out: "it is a sum"},

	"ZoneIngress/Zone":       {path: ".spec.zone"},
	"ZoneIngress/Address":    {path: ".spec.address"},
	"ZoneIngress/Advertised": {path: ".spec.advertisedAddress"},
	"ZoneEgress/Zone":        {path: ".spec.zone"},
	"ZoneEgress/Address":     {path: ".spec.address"},
	"ZoneEgress/Advertised":  {path: ".spec.advertisedAddress"},

	// ZoneIngressInsight, ZoneEgressInsight, DataplaneInsight
	"Online":      {path: ".status.online", typ: "boolean"},
	"Certificate": {path: ".status.certificate.expiry", description: "When the newest certificate runs out."},
	"Issued":      {path: ".status.certificate.generations", typ: "integer"},
	"Identity":    {path: ".status.certificate.identity"},
	"Instance":    {path: ".status.subscriptions[-1].instance"},
	"Connections": {path: ".status.subscriptions[-1].generation", typ: "integer"},
	"Version":     {path: ".status.versions.version"},
	"Rejected":    {out: "it is a sum"},

	"ServiceExport/Valid":     condition("Valid"),
	"ServiceExport/Conflict":  condition("Conflict"),
	"ServiceExport/Type":      {path: ".status.available.type"},
	"ServiceExport/Instances": {path: ".status.available.instances", typ: "integer"},
	"ServiceExport/Zone":      {path: ".status.available.zone"},
	"ServiceExport/Mesh":      {path: ".status.available.mesh"},
	"ServiceExport/To":        {path: ".status.available.toZones"},

	"ServiceImport/Type":  {path: ".spec.type"},
	"ServiceImport/IP":    {path: ".spec.ips"},
	"ServiceImport/Ports": {out: manyParts},
	"ServiceImport/Zones": {out: manyParts},

	"VirtualIP/Host":      {path: ".spec.hostname", description: "The name that has the addresses, below mesh."},
	"VirtualIP/Addresses": {path: ".spec.addresses"},
	"VirtualIP/Service":   {path: ".spec.service", description: "The Service whose endpoints answer."},
	"VirtualIP/Mesh":      {path: ".spec.mesh"},
	"VirtualIP/Unused":    {path: ".spec.unusedSince", typ: "date"},

	"IPAddressPool/Addresses":   {path: ".spec.addresses"},
	"IPAddressPool/Assigned":    {path: ".status.assigned", typ: "integer"},
	"IPAddressPool/Auto-Assign": {path: ".spec.autoAssign", typ: "boolean"},
	"IPAddressPool/Namespaces":  {path: ".spec.namespaces"},

	"Target":  {out: composed},
	"Targets": {path: ".status.targets", typ: "integer"},
	"Status":  {path: `.status.conditions[?(@.type=="Accepted")].reason`, description: "Whether the policy is in effect; else why not."},

	"ZoneShift/Out":       {out: composed},
	"ZoneShift/State":     {path: `.status.conditions[?(@.type=="Active")].reason`},
	"ZoneShift/Left":      {out: clock},
	"ZoneShift/Reason":    {path: ".spec.reason"},
	"ZoneShift/Services":  {path: ".status.services", typ: "integer"},
	"ZoneShift/Endpoints": {path: ".status.endpoints", typ: "integer"},
}

func accepted() cell {
	return cell{path: `.status.conditions[?(@.type=="Accepted")].reason`, description: "Whether the policy is in effect; else why not."}
}

// added are columns in place of those that are left out.
var added = map[string][]PrinterColumn{
	"ZoneShift": {
		{Name: "Zone", Type: "string", Description: "The zone whose endpoints get new connections only where no other one is ready.", JSONPath: ".spec.zone"},
		{Name: "Node", Type: "string", Description: "The same of a node.", JSONPath: ".spec.node"},
		{Name: "Until", Type: "string", Description: "When it ends by itself.", JSONPath: ".spec.until"},
	},
}

// cellOf finds the value of a column.
func cellOf(d *resource.Descriptor, c metav1.TableColumnDefinition) (cell, error) {
	found, ok := cells[d.GVK.Kind+"/"+c.Name]
	if !ok {
		found, ok = cells[c.Name]
	}
	if !ok {
		return cell{}, fmt.Errorf("column %s: no path to its value, and no reason why there is none", c.Name)
	}
	return found, nil
}

// columnsOf are the columns of the descriptor. The name is printed anyway.
func columnsOf(d *resource.Descriptor) ([]PrinterColumn, error) {
	out := slices.Clone(added[d.GVK.Kind])
	for _, c := range d.Columns[1:] {
		at, err := cellOf(d, c)
		switch {
		case err != nil:
			return nil, err
		case at.out != "":
			continue
		}
		out = append(out, PrinterColumn{
			Name: c.Name, Type: orElse(at.typ, "string"), Description: orElse(at.description, c.Description),
			Priority: c.Priority, JSONPath: at.path,
		})
	}
	return out, nil
}

func orElse(s, missing string) string {
	if s == "" {
		return missing
	}
	return s
}
