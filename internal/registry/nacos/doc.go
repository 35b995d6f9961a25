// Package nacos serves clients of Nacos: version 2 by gRPC, with HTTP beside it for what its clients
// and operators ask there, and the naming and configuration of version 1.
//
// Enter at New; Serve is for gRPC, ServeHTTP for HTTP. Instances are registered with the core (package
// registry), configuration is in RegistryConfigs. A connection of gRPC is a session: its ephemeral
// instances end with it, after a time in which the client can come back. What is pushed is coalesced:
// a client that does not keep up is sent the newest state once it does.
//
// There is no specification of the protocol; what is here is what the clients of Java (2.4) and Go
// (2.3) send and expect.
package nacos
