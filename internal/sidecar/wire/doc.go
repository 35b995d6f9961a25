// Package wire reads and writes the messages of delta xDS and of load reports without generated
// code: only the fields that a relay needs, everything else as bytes.
//
// Enter at Request, Response and Codec. Bodies of resources are never decoded, except for the
// EDS service name of a Cluster. Generated messages would add 8 MB to the program and 5 MB to its
// memory.
//
// Source of field numbers: envoy/service/discovery/v3/discovery.proto,
// envoy/service/load_stats/v3/lrs.proto, envoy/config/core/v3/base.proto,
// envoy/config/cluster/v3/cluster.proto, google/rpc/status.proto.
package wire
