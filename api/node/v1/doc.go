// Package nodev1 holds the protobuf messages that a control plane sends to the
// agents of nodes, and that agents keep on disk.
//
// It owns the wire format alone: package internal/view/wire translates to and
// from the model of the agent, and checks what it reads.
package nodev1

//go:generate sh -c "protoc --plugin=protoc-gen-go=$(go tool -n protoc-gen-go) --go_out=. --go_opt=paths=source_relative node.proto"
