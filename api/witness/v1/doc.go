// Package witnessv1 holds the protobuf messages by which agents show a control plane
// that they are there, and by which it has them probe each other.
//
// It owns the wire format alone: package internal/witness has both ends and checks
// what it reads.
package witnessv1

//go:generate sh -c "protoc --plugin=protoc-gen-go=$(go tool -n protoc-gen-go) --plugin=protoc-gen-go-grpc=$(go tool -n protoc-gen-go-grpc) --go_out=. --go_opt=paths=source_relative --go-grpc_out=. --go-grpc_opt=paths=source_relative witness.proto"
