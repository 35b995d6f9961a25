// Package federationv1 holds the protobuf messages between the control plane of a
// zone and the global one: the body of synchronised resources, the stream of protocol
// version 1, reverse calls and health checks.
//
// It owns the wire format alone: package internal/federation checks what is read of
// resources, internal/federation/stream has both ends of the services.
package federationv1

//go:generate sh -c "protoc --plugin=protoc-gen-go=$(go tool -n protoc-gen-go) --plugin=protoc-gen-go-grpc=$(go tool -n protoc-gen-go-grpc) --go_out=. --go_opt=paths=source_relative --go-grpc_out=. --go-grpc_opt=paths=source_relative federation.proto"
