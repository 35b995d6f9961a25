// Package insight records what a control plane observes of proxies: their connections, what
// they were sent, acknowledged and rejected, their certificates, and the service ports that they
// used.
//
// The server of xDS and whoever issues certificates call the methods of Recorder, which never
// block. The live state is in memory; what matters for longer is written into the
// DataplaneInsight of the workload, and into conditions of its Dataplane: when a proxy connects
// or disconnects, rejects something, gets a certificate, or uses a service port for the first
// time, at most once in 10 s per proxy, and never because of an acknowledgement alone. Each
// instance records the streams that it has; the one that leads ends those of instances that have
// gone.
//
// Gateways between zones are observed alike, into ZoneIngressInsights and ZoneEgressInsights: the stream
// of the Envoy of a gateway, or, without one, that of the view of its process, never both. They have
// their conditions in the insight, and a certificate in each mesh. Enter at New. It decides nothing about what proxies are sent.
package insight
