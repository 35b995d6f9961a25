// Package demandv1 holds the protobuf messages in which agents report the traffic
// that they carried, and the gRPC service that takes the reports.
//
// It owns the wire format alone: package internal/demand/wire translates to and
// from the model, and checks what it reads.
package demandv1

//go:generate sh -c "protoc --plugin=protoc-gen-go=$(go tool -n protoc-gen-go) --plugin=protoc-gen-go-grpc=$(go tool -n protoc-gen-go-grpc) --go_out=. --go_opt=paths=source_relative --go-grpc_out=. --go-grpc_opt=paths=source_relative demand.proto"
