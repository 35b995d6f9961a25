// Package wire has the messages of the binary protocol of Apache Pulsar that readers need, under names of their own: a
// process that has the messages of Pulsar's own client, too, would not start with the same names twice.
package wire

//go:generate sh -c "protoc --plugin=protoc-gen-go=$(go tool -n protoc-gen-go) --go_out=. --go_opt=paths=source_relative pulsar.proto"
