package bootstrap

import (
	"fmt"
	"net"
	"strconv"

	"github.com/proxima-mesh/proxima/internal/gateway/frame"
)

// Gateway is the proxy of a gateway between zones. Its listener never changes: which server names it
// serves are the clusters that it has.
type Gateway struct {
	// Address that it listens on, HOST:PORT; without a host: on all addresses.
	Address string
	// Socket of the gateway's own engine, a path. Tunnels of nodes go there as they are, after a
	// header of the PROXY protocol, version 2, that says who the client is.
	Socket string
	// Outside is the path of the socket at which the engine of an egress has connections made to services
	// outside every mesh, by CONNECT and the name of a cluster (package front); empty: it makes them itself.
	Outside string
}

const (
	// gatewayName of the listener, tunnelName of the cluster of the own engine.
	gatewayName = "gateway"
	tunnelName  = "tunnel"
	outsideName = "outside"
	// attempts to connect, as in the own engine.
	attempts = 3
)

// Options of sockets (socket(7), tcp(7)) by which a peer whose machine is gone is found out within
// half a minute: 15 s idle, then 3 probes, 5 s apart.
const (
	solSocket, soKeepAlive                    = 1, 9
	ipprotoTCP                                = 6
	tcpKeepIdle, tcpKeepInterval, tcpKeepTry  = 4, 5, 6
	keepIdleSeconds, keepSeconds, keepAttempt = 15, 5, 3
)

// resources are the listener and the clusters that it needs, beside the control plane's.
//
// There is one filter chain for all server names: the name is the cluster's, and of a cluster that
// does not exist the connection is closed at once. What is of neither protocol is closed, too.
func (g *Gateway) resources(controlPlane object) (object, error) {
	host, text, err := net.SplitHostPort(g.Address)
	port, portErr := strconv.ParseUint(text, 10, 16)
	if err != nil || portErr != nil || port == 0 {
		return nil, fmt.Errorf("bootstrap: address of the gateway %q: want HOST:PORT", g.Address)
	}
	at := object{"address": host, "port_value": port}
	if host == "" {
		at["address"], at["ipv4_compat"] = "::", true
		if !hasIPv6() {
			at = object{"address": "0.0.0.0", "port_value": port}
		}
	}
	listener := object{
		"name": gatewayName, "traffic_direction": "INBOUND",
		"address": object{"socket_address": at},
		"socket_options": []object{
			option(solSocket, soKeepAlive, 1), option(ipprotoTCP, tcpKeepIdle, keepIdleSeconds),
			option(ipprotoTCP, tcpKeepInterval, keepSeconds), option(ipprotoTCP, tcpKeepTry, keepAttempt),
		},
		"listener_filters": []object{filter("envoy.filters.listener.tls_inspector",
			"envoy.extensions.filters.listener.tls_inspector.v3.TlsInspector", object{})},
		"listener_filters_timeout": "10s",
		"filter_chains": []object{
			{
				"name": "passthrough", "filter_chain_match": protocols(frame.ProtocolProxy), "filters": []object{bySNI(), tcpTo("none", "passthrough")},
			},
			{
				"name": tunnelName, "filter_chain_match": protocols(frame.ProtocolFrames, frame.ProtocolTunnel),
				"filters": []object{tcpTo(tunnelName, tunnelName)},
			},
		},
	}
	listeners := []object{listener}
	if g.Outside != "" {
		listeners = append(listeners, g.outside())
	}
	return object{"clusters": []object{controlPlane, g.tunnel()}, "listeners": listeners}, nil
}

// outside is the listener by which the own engine has connections made. Only a definite failure is answered by
// 503; a cluster that is not there is 404.
func (g *Gateway) outside() object {
	connect := []object{{"upgrade_type": "CONNECT", "connect_config": object{}}}
	manager := object{
		"stat_prefix": outsideName, "codec_type": "HTTP2", "http2_protocol_options": object{"allow_connect": true},
		"upgrade_configs": []object{{"upgrade_type": "CONNECT"}}, "stream_idle_timeout": "0s", "generate_request_id": false,
		"http_filters": []object{filter("envoy.filters.http.router", "envoy.extensions.filters.http.router.v3.Router", object{})},
		"route_config": object{"name": outsideName, "virtual_hosts": []object{{
			"name": outsideName, "domains": []string{"*"}, "routes": []object{{
				"match": object{"connect_matcher": object{}},
				"route": object{
					"cluster_header": frame.ClusterHeader, "cluster_not_found_response_code": "NOT_FOUND", "timeout": "0s", "upgrade_configs": connect,
					"retry_policy": object{"retry_on": "connect-failure", "num_retries": attempts - 1},
				},
			}},
		}}},
	}
	return object{
		"name": outsideName, "traffic_direction": "OUTBOUND",
		"address": object{"pipe": object{"path": g.Outside, "mode": 0o600}},
		"filter_chains": []object{{"filters": []object{filter("envoy.filters.network.http_connection_manager",
			"envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager", manager)}}},
	}
}

// hasIPv6 reports whether sockets of that family can be made.
func hasIPv6() bool {
	l, err := net.Listen("tcp6", "[::1]:0")
	if err != nil {
		return false
	}
	return l.Close() == nil
}

// protocols (ALPN) of a filter chain.
func protocols(names ...string) object {
	return object{"transport_protocol": "tls", "application_protocols": names}
}

// bySNI chooses the cluster sni|SERVERNAME.
func bySNI() object {
	return filter("envoy.filters.network.set_filter_state", "envoy.extensions.filters.network.set_filter_state.v3.Config", object{
		"on_new_connection": []object{{
			"object_key":    "envoy.tcp_proxy.cluster",
			"format_string": object{"text_format_source": object{"inline_string": "sni|%REQUESTED_SERVER_NAME%"}},
		}},
	})
}

// tcpTo sends connections to a cluster; they may be idle for as long as they like.
func tcpTo(cluster, stat string) object {
	return filter("envoy.filters.network.tcp_proxy", "envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy", object{
		"stat_prefix": stat, "cluster": cluster, "max_connect_attempts": attempts, "idle_timeout": "0s",
	})
}

// tunnel is the cluster of the gateway's own engine.
func (g *Gateway) tunnel() object {
	unlimited := uint32(1<<32 - 1)
	return object{
		"name": tunnelName, "type": "STATIC", "connect_timeout": "3s",
		"circuit_breakers": object{"thresholds": []object{{
			"max_connections": unlimited, "max_pending_requests": unlimited, "max_requests": unlimited, "max_retries": unlimited,
		}}},
		"transport_socket": filter("envoy.transport_sockets.upstream_proxy_protocol",
			"envoy.extensions.transport_sockets.proxy_protocol.v3.ProxyProtocolUpstreamTransport", object{
				"config": object{"version": "V2"}, "transport_socket": filter("envoy.transport_sockets.raw_buffer",
					"envoy.extensions.transport_sockets.raw_buffer.v3.RawBuffer", object{}),
			}),
		"load_assignment": object{"cluster_name": tunnelName, "endpoints": []object{{"lb_endpoints": []object{
			endpoint(object{"pipe": object{"path": g.Socket}}),
		}}}},
	}
}

// filter is an extension with its configuration.
func filter(name, typ string, config object) object {
	config["@type"] = "type.googleapis.com/" + typ
	return object{"name": name, "typed_config": config}
}

func option(level, name, value int) object {
	return object{"level": level, "name": name, "int_value": value, "state": "STATE_PREBIND"}
}
