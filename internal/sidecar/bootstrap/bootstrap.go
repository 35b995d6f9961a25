// Package bootstrap writes the configuration that a proxy starts with, which says who it is and
// where the rest comes from: for Envoy, below a supervisor or on its own, and for gRPC.
//
// Enter at Envoy and GRPC. The package is pure. Nothing in a configuration is a secret: keys are
// named by their files.
//
// Sources: envoy/config/bootstrap/v3/bootstrap.proto, gRFC A27 and A29.
package bootstrap

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
)

// Node is who the proxy is.
type Node struct {
	// ID is MESH/NAMESPACE/DATAPLANE, Cluster NAMESPACE/SERVICEACCOUNT.
	ID, Cluster string
	// Region, Zone and Site are where it runs; each may be empty.
	Region, Zone, Site string
}

// NodeID of a Dataplane.
func NodeID(mesh, namespace, name string) string { return mesh + "/" + namespace + "/" + name }

// GatewayID of a gateway, which is of all meshes, by its role (ingress, egress).
func GatewayID(role, name string) string { return "*/" + role + "/" + name }

// Files of a credential, in PEM. The proxy reads them again when they change.
type Files struct {
	// Authorities verify control planes.
	Certificate, Key, Authorities string
	// Roots of the mesh's trust domain, by which gRPC programs verify each other; "": Authorities.
	Roots string
}

// Config of a proxy. Node, and Socket or Servers with Files, are required.
type Config struct {
	Node Node
	// Socket of the supervisor, a path.
	Socket string
	// Servers are the control plane's addresses for xDS (HOST:PORT), where there is no supervisor.
	Servers []string
	Files   Files
	// Gateway, if the proxy is that of a gateway between zones; nil: a workload's.
	Gateway *Gateway
	// AdminSocket of Envoy, a path: it is not on the network, as it can stop Envoy.
	AdminSocket string
	// ServerTemplate names the listener of a gRPC server by its address, as in
	// "in|%s"; "": gRPC's clients alone are configured.
	ServerTemplate string
}

const (
	// clusterName of the control plane in Envoy.
	clusterName = "xds"
	// socketMode of the admin interface: the owner's alone.
	socketMode = 0o600
	// keepAliveSeconds after which an idle connection is probed, and between probes.
	keepAliveSeconds = 10
)

type object = map[string]any

// Envoy returns the bootstrap of an Envoy, as JSON.
//
// It asks by delta ADS, sends its Node (60 kB) once per stream, waits for the first configuration
// as long as it takes, and is back within a second after an outage: by default it would be blind
// for 14 s after one of 5 s.
func Envoy(c Config) ([]byte, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	if c.AdminSocket == "" {
		return nil, errors.New("bootstrap: the path of Envoy's admin socket is missing")
	}
	cluster, err := c.cluster()
	if err != nil {
		return nil, err
	}
	service := []object{{"envoy_grpc": object{
		"cluster_name": clusterName,
		"retry_policy": object{"retry_back_off": object{"base_interval": "0.1s", "max_interval": "1s"}},
	}}}
	source := object{"resource_api_version": "V3", "ads": object{}, "initial_fetch_timeout": "0s"}
	static := object{"clusters": []object{cluster}}
	if c.Gateway != nil {
		if static, err = c.Gateway.resources(cluster); err != nil {
			return nil, err
		}
	}
	return encode(object{
		"node":  c.Node.object(),
		"admin": object{"address": object{"pipe": object{"path": c.AdminSocket, "mode": socketMode}}},
		"dynamic_resources": object{
			"ads_config": object{
				"api_type": "DELTA_GRPC", "transport_api_version": "V3", "set_node_on_first_message_only": true, "grpc_services": service,
			},
			"cds_config": source, "lds_config": source,
		},
		"static_resources": static,
		"cluster_manager": object{"load_stats_config": object{
			"api_type": "GRPC", "transport_api_version": "V3", "grpc_services": service,
		}},
		// 10,000 clusters have a million statistics, most of which are never counted.
		"deferred_stat_options": object{"enable_deferred_creation_stats": true},
	})
}

func (c Config) check() error {
	switch parts := strings.Split(c.Node.ID, "/"); {
	case len(parts) != 3 || parts[0] == "" || parts[1] == "" || parts[2] == "":
		return fmt.Errorf("bootstrap: node ID %q: want MESH/NAMESPACE/DATAPLANE", c.Node.ID)
	case c.Socket == "" && len(c.Servers) == 0:
		return errors.New("bootstrap: neither the supervisor's socket nor a server is named")
	case c.Socket == "" && (c.Files.Certificate == "" || c.Files.Key == "" || c.Files.Authorities == ""):
		return errors.New("bootstrap: without a supervisor the files of certificate, key and authorities are needed")
	}
	return nil
}

func (n Node) object() object {
	out := object{"id": n.ID, "cluster": n.Cluster}
	locality := object{}
	for key, value := range map[string]string{"region": n.Region, "zone": n.Zone, "sub_zone": n.Site} {
		if value != "" {
			locality[key] = value
		}
	}
	if len(locality) > 0 {
		out["locality"] = locality
	}
	return out
}

// cluster of the control plane or the supervisor.
func (c Config) cluster() (object, error) {
	out := object{
		"name": clusterName, "connect_timeout": "3s",
		"typed_extension_protocol_options": object{"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": object{
			"@type":                "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
			"explicit_http_config": object{"http2_protocol_options": object{}},
		}},
	}
	var endpoints []object
	if c.Socket != "" {
		out["type"] = "STATIC"
		endpoints = append(endpoints, endpoint(object{"pipe": object{"path": c.Socket}}))
	} else {
		out["type"] = "STRICT_DNS"
		out["upstream_connection_options"] = object{"tcp_keepalive": object{
			"keepalive_probes": 3, "keepalive_time": keepAliveSeconds, "keepalive_interval": keepAliveSeconds,
		}}
		host, _, err := net.SplitHostPort(c.Servers[0])
		if err != nil {
			return nil, fmt.Errorf("bootstrap: server %q: want HOST:PORT", c.Servers[0])
		}
		out["transport_socket"] = c.Files.transportSocket(host)
		for _, server := range c.Servers {
			host, text, err := net.SplitHostPort(server)
			port, portErr := strconv.ParseUint(text, 10, 16)
			if err != nil || portErr != nil || host == "" {
				return nil, fmt.Errorf("bootstrap: server %q: want HOST:PORT", server)
			}
			endpoints = append(endpoints, endpoint(object{"socket_address": object{"address": host, "port_value": port}}))
		}
	}
	out["load_assignment"] = object{"cluster_name": clusterName, "endpoints": []object{{"lb_endpoints": endpoints}}}
	return out, nil
}

func endpoint(address object) object { return object{"endpoint": object{"address": address}} }

// transportSocket is TLS with the credential of the files, for servers of one host's certificate.
func (f Files) transportSocket(host string) object {
	file := func(path string) object { return object{"filename": path} }
	kind := "DNS"
	if net.ParseIP(host) != nil {
		kind = "IP_ADDRESS"
	}
	tls := object{
		"@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
		"common_tls_context": object{
			"tls_params":       object{"tls_minimum_protocol_version": "TLSv1_2"},
			"alpn_protocols":   []string{"h2"},
			"tls_certificates": []object{{"certificate_chain": file(f.Certificate), "private_key": file(f.Key)}},
			"validation_context": object{
				"trusted_ca":                    file(f.Authorities),
				"match_typed_subject_alt_names": []object{{"san_type": kind, "matcher": object{"exact": host}}},
			},
		},
	}
	if kind == "DNS" {
		tls["sni"] = host
	}
	return object{"name": "envoy.transport_sockets.tls", "typed_config": tls}
}

// GRPC returns the bootstrap of a gRPC client or server, for GRPC_XDS_BOOTSTRAP.
func GRPC(c Config) ([]byte, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	features := []string{"xds_v3"}
	server := object{"server_features": features, "channel_creds": []object{{"type": "insecure"}}}
	if c.Socket != "" {
		server["server_uri"] = "unix://" + c.Socket
	} else {
		server["server_uri"] = "dns:///" + c.Servers[0]
		server["channel_creds"] = []object{{"type": "tls", "config": c.Files.provider()}}
	}
	out := object{"node": c.Node.object(), "xds_servers": []object{server}}
	if c.Files.Certificate != "" {
		out["certificate_providers"] = object{"default": object{"plugin_name": "file_watcher", "config": c.Files.peers()}}
	}
	if c.ServerTemplate != "" {
		out["server_listener_resource_name_template"] = c.ServerTemplate
	}
	return encode(out)
}

// provider is the configuration of gRPC's file_watcher.
func (f Files) provider() object {
	return object{
		"certificate_file": f.Certificate, "private_key_file": f.Key, "ca_certificate_file": f.Authorities, "refresh_interval": "10s",
	}
}

// peers is the configuration of the certificate provider for connections to other workloads.
func (f Files) peers() object {
	if f.Roots != "" {
		f.Authorities = f.Roots
	}
	return f.provider()
}

func encode(o object) ([]byte, error) {
	out, err := json.MarshalIndent(o, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("bootstrap: %w", err)
	}
	return append(out, '\n'), nil
}
