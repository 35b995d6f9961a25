// Package sidecarv1 holds the protobuf messages by which a control plane asks the supervisors
// of proxies.
//
// It owns the wire format alone: package internal/xds has the control plane's end, package
// internal/sidecar/relay the supervisor's.
package sidecarv1

//go:generate sh -c "protoc --plugin=protoc-gen-go=$(go tool -n protoc-gen-go) --plugin=protoc-gen-go-grpc=$(go tool -n protoc-gen-go-grpc) --go_out=. --go_opt=paths=source_relative --go-grpc_out=. --go-grpc_opt=paths=source_relative sidecar.proto"
