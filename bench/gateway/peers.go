package main

// The peers do what ours does: mTLS of version 1.3 between the two sides, with
// AES-128-GCM, one thread each, no logs and no health checks.

func haproxyArgs(config string) []string { return []string{"-db", "-q", "-f", config} }

const haproxyCommon = `global
  nbthread 1
  maxconn 9980
  ssl-default-bind-ciphersuites TLS_AES_128_GCM_SHA256
  ssl-default-server-ciphersuites TLS_AES_128_GCM_SHA256
  ssl-default-bind-options ssl-min-ver TLSv1.3
  ssl-default-server-options ssl-min-ver TLSv1.3
defaults
  mode tcp
  timeout connect 5s
  timeout client 5m
  timeout server 5m
`

const haproxyServer = haproxyCommon + `frontend in
  bind $ADDRESS ssl crt $DIR/ingress.both ca-file $DIR/ca.pem verify required
  default_backend out
backend out
  server one $TARGET
`

const haproxyClient = haproxyCommon + `frontend in
  bind $ADDRESS
  default_backend out
backend out
  server one $TARGET ssl crt $DIR/node.both ca-file $DIR/ca.pem verify required sni str($SNI)
`

func envoyArgs(config string) []string {
	return []string{"-c", config, "--concurrency", "1", "--disable-hot-restart", "--log-level", "off"}
}

const envoyServer = `static_resources:
  listeners:
  - name: in
    address: {socket_address: {address: $HOST, port_value: $PORT}}
    enable_reuse_port: false
    filter_chains:
    - filters:
      - name: envoy.filters.network.tcp_proxy
        typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy, stat_prefix: in, cluster: out}
      transport_socket:
        name: envoy.transport_sockets.tls
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext
          require_client_certificate: true
          common_tls_context:
            tls_params: {tls_minimum_protocol_version: TLSv1_3, tls_maximum_protocol_version: TLSv1_3}
            tls_certificates: [{certificate_chain: {filename: $DIR/ingress.pem}, private_key: {filename: $DIR/ingress.key}}]
            validation_context: {trusted_ca: {filename: $DIR/ca.pem}}
` + envoyCluster

const envoyClient = `static_resources:
  listeners:
  - name: in
    address: {socket_address: {address: $HOST, port_value: $PORT}}
    enable_reuse_port: false
    filter_chains:
    - filters:
      - name: envoy.filters.network.tcp_proxy
        typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy, stat_prefix: in, cluster: out}
` + envoyCluster + `    transport_socket:
      name: envoy.transport_sockets.tls
      typed_config:
        "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext
        sni: $SNI
        common_tls_context:
          tls_params: {tls_minimum_protocol_version: TLSv1_3, tls_maximum_protocol_version: TLSv1_3}
          tls_certificates: [{certificate_chain: {filename: $DIR/node.pem}, private_key: {filename: $DIR/node.key}}]
          validation_context: {trusted_ca: {filename: $DIR/ca.pem}}
`

// envoyCluster allows as many connections as the measurement of memory needs.
const envoyCluster = `  clusters:
  - name: out
    type: STATIC
    connect_timeout: 5s
    circuit_breakers: {thresholds: [{max_connections: 20000, max_pending_requests: 20000}]}
    load_assignment:
      cluster_name: out
      endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: {address: $TARGETHOST, port_value: $TARGETPORT}}}}]}]
`
