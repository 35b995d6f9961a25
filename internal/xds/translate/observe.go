package translate

import (
	"net"
	"net/netip"
	"strconv"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	tracev3 "github.com/envoyproxy/go-control-plane/envoy/config/trace/v3"
	filelogv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/file/v3"
	otelv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/open_telemetry/v3"
	streamv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/stream/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	tagv3 "github.com/envoyproxy/go-control-plane/envoy/type/tracing/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	commonv1 "go.opentelemetry.io/proto/otlp/common/v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	mesh "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/policy"
	"github.com/proxima-mesh/proxima/internal/sidecar/wire"
)

// lineFormat is that of logs that name none: Envoy's own, shortened to what both connections and
// requests have.
const lineFormat = "[%START_TIME%] \"%REQ(:METHOD)% %REQ(X-ENVOY-ORIGINAL-PATH?:PATH)% %PROTOCOL%\" %RESPONSE_CODE% %RESPONSE_FLAGS% " +
	"%BYTES_RECEIVED% %BYTES_SENT% %DURATION% \"%UPSTREAM_HOST%\" %UPSTREAM_CLUSTER% %DOWNSTREAM_REMOTE_ADDRESS%\n"

// AccessLogs of a policy. Those over plain TCP, which Envoy does not have, go to the supervisor; an Envoy
// without one (supervised is false) does not have them.
func AccessLogs(all []mesh.AccessLog, supervised bool) []*accesslogv3.AccessLog {
	var out []*accesslogv3.AccessLog
	for i := range all {
		l := &all[i]
		name, config := logger(l)
		if config == nil || l.TCP != nil && !supervised {
			continue
		}
		log := &accesslogv3.AccessLog{Name: name, ConfigType: &accesslogv3.AccessLog_TypedConfig{TypedConfig: pack(config)}}
		if l.Of == mesh.LogErrors {
			log.Filter = failures()
		}
		out = append(out, log)
	}
	return out
}

// failures are responses of 500 and more, and what has response flags.
func failures() *accesslogv3.AccessLogFilter {
	return &accesslogv3.AccessLogFilter{FilterSpecifier: &accesslogv3.AccessLogFilter_OrFilter{OrFilter: &accesslogv3.OrFilter{
		Filters: []*accesslogv3.AccessLogFilter{
			{FilterSpecifier: &accesslogv3.AccessLogFilter_StatusCodeFilter{StatusCodeFilter: &accesslogv3.StatusCodeFilter{
				Comparison: &accesslogv3.ComparisonFilter{
					Op: accesslogv3.ComparisonFilter_GE, Value: &corev3.RuntimeUInt32{DefaultValue: 500, RuntimeKey: "proxima.access_log.errors"},
				},
			}}},
			{FilterSpecifier: &accesslogv3.AccessLogFilter_ResponseFlagFilter{ResponseFlagFilter: &accesslogv3.ResponseFlagFilter{}}},
		},
	}}}
}

func logger(l *mesh.AccessLog) (string, proto.Message) {
	format := lineFormat
	if l.Format != "" {
		format = l.Format + "\n"
	}
	line := &corev3.SubstitutionFormatString{Format: &corev3.SubstitutionFormatString_TextFormatSource{
		TextFormatSource: &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: format}},
	}}
	switch {
	case l.Stdout != nil:
		return "envoy.access_loggers.stdout", &streamv3.StdoutAccessLog{AccessLogFormat: &streamv3.StdoutAccessLog_LogFormat{LogFormat: line}}
	case l.File != nil:
		return "envoy.access_loggers.file", &filelogv3.FileAccessLog{
			Path: l.File.Path, AccessLogFormat: &filelogv3.FileAccessLog_LogFormat{LogFormat: line},
		}
	case l.OTLP != nil:
		return "envoy.access_loggers.open_telemetry", &otelv3.OpenTelemetryAccessLogConfig{
			LogName: "access", GrpcService: grpcService(l.OTLP.Address),
			Body: stringValue(format[:len(format)-1]),
		}
	case l.TCP != nil:
		return "envoy.access_loggers.open_telemetry", &otelv3.OpenTelemetryAccessLogConfig{
			LogName: "access", DisableBuiltinLabels: true, Body: stringValue(format[:len(format)-1]),
			GrpcService: &corev3.GrpcService{TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{
				EnvoyGrpc: &corev3.GrpcService_EnvoyGrpc{ClusterName: supervisorCluster},
			}},
			ResourceAttributes: &commonv1.KeyValueList{Values: []*commonv1.KeyValue{{Key: wire.LogServer, Value: stringValue(l.TCP.Address)}}},
		}
	}
	return "", nil
}

// supervisorCluster is that of the supervisor's socket in the bootstrap of its Envoy (package bootstrap).
const supervisorCluster = "xds"

func stringValue(text string) *commonv1.AnyValue {
	return &commonv1.AnyValue{Value: &commonv1.AnyValue_StringValue{StringValue: text}}
}

// collectorName is that of the cluster of a server of logs or traces.
func collectorName(address string) string { return "collector|" + address }

func grpcService(address string) *corev3.GrpcService {
	return &corev3.GrpcService{TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{
		EnvoyGrpc: &corev3.GrpcService_EnvoyGrpc{ClusterName: collectorName(address)},
	}}
}

// Tracing of requests; nil: none.
func Tracing(t *mesh.WorkloadTracing) *hcmv3.HttpConnectionManager_Tracing {
	if t == nil {
		return nil
	}
	sample := 100.0
	if t.Sample != nil {
		sample = *t.Sample
	}
	out := &hcmv3.HttpConnectionManager_Tracing{RandomSampling: &typev3.Percent{Value: sample}}
	switch {
	case t.OTLP != nil:
		out.Provider = provider("envoy.tracers.opentelemetry", &tracev3.OpenTelemetryConfig{GrpcService: grpcService(t.OTLP.Address)})
	case t.Zipkin != nil:
		path := t.Zipkin.Path
		if path == "" {
			path = "/api/v2/spans"
		}
		out.Provider = provider("envoy.tracers.zipkin", &tracev3.ZipkinConfig{
			CollectorCluster: collectorName(t.Zipkin.Address), CollectorHostname: t.Zipkin.Address, CollectorEndpoint: path, CollectorEndpointVersion: tracev3.ZipkinConfig_HTTP_JSON,
		})
	case t.Datadog != nil:
		out.Provider = provider("envoy.tracers.datadog", &tracev3.DatadogConfig{CollectorCluster: collectorName(t.Datadog.Address),
			CollectorHostname: t.Datadog.Address, ServiceName: "proxima"})
	}
	for _, tag := range t.Tags {
		custom := &tagv3.CustomTag{Tag: tag.Name}
		if tag.Header != "" {
			custom.Type = &tagv3.CustomTag_RequestHeader{RequestHeader: &tagv3.CustomTag_Header{Name: tag.Header, DefaultValue: tag.Value}}
		} else {
			custom.Type = &tagv3.CustomTag_Literal_{Literal: &tagv3.CustomTag_Literal{Value: tag.Value}}
		}
		out.CustomTags = append(out.CustomTags, custom)
	}
	return out
}

func provider(name string, config proto.Message) *tracev3.Tracing_Http {
	return &tracev3.Tracing_Http{Name: name, ConfigType: &tracev3.Tracing_Http_TypedConfig{TypedConfig: pack(config)}}
}

// Collectors are the clusters of the servers of logs and traces of a workload.
func Collectors(w *policy.Workload) []*clusterv3.Cluster {
	var out []*clusterv3.Cluster
	seen := map[string]bool{}
	add := func(address string, grpc bool) {
		if !seen[address] {
			seen[address] = true
			out = append(out, collector(address, grpc))
		}
	}
	for i := range w.AccessLog {
		if o := w.AccessLog[i].OTLP; o != nil {
			add(o.Address, true)
		}
	}
	if t := w.Tracing; t != nil {
		switch {
		case t.OTLP != nil:
			add(t.OTLP.Address, true)
		case t.Zipkin != nil:
			add(t.Zipkin.Address, false)
		case t.Datadog != nil:
			add(t.Datadog.Address, false)
		}
	}
	return out
}

func collector(address string, grpc bool) *clusterv3.Cluster {
	host, text, err := net.SplitHostPort(address)
	if err != nil {
		host = address // validation refuses it
	}
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		port = 0
	}
	name := collectorName(address)
	c := &clusterv3.Cluster{
		Name: name, ConnectTimeout: durationpb.New(5e9), ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STRICT_DNS},
		LoadAssignment: &endpointv3.ClusterLoadAssignment{ClusterName: name, Endpoints: []*endpointv3.LocalityLbEndpoints{{
			LbEndpoints: []*endpointv3.LbEndpoint{{HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{
				Address: &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
					Address: host, PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: uint32(port)},
				}}},
			}}}},
		}}},
	}
	if _, err := netip.ParseAddr(host); err == nil {
		c.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC}
	}
	if grpc {
		c.TypedExtensionProtocolOptions = map[string]*anypb.Any{httpOptions: pack(&httpv3.HttpProtocolOptions{
			UpstreamProtocolOptions: &httpv3.HttpProtocolOptions_ExplicitHttpConfig_{ExplicitHttpConfig: &httpv3.HttpProtocolOptions_ExplicitHttpConfig{
				ProtocolConfig: &httpv3.HttpProtocolOptions_ExplicitHttpConfig_Http2ProtocolOptions{Http2ProtocolOptions: &corev3.Http2ProtocolOptions{}},
			}},
		})}
	}
	return c
}
