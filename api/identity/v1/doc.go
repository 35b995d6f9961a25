// Package identityv1 holds the protobuf messages by which agents get certificates for
// their node and its workloads, and the roots of meshes.
//
// It owns the wire format alone: package internal/identity/issue has the server and
// internal/identity/workload the agent's end, and both check what they read.
package identityv1

//go:generate sh -c "protoc --plugin=protoc-gen-go=$(go tool -n protoc-gen-go) --plugin=protoc-gen-go-grpc=$(go tool -n protoc-gen-go-grpc) --go_out=. --go_opt=paths=source_relative --go-grpc_out=. --go-grpc_opt=paths=source_relative identity.proto"
