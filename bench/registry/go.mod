module github.com/proxima-mesh/proxima/bench/registry

go 1.26.0

require (
	github.com/go-zookeeper/zk v1.0.4
	github.com/proxima-mesh/proxima v0.0.0
	golang.org/x/net v0.61.0
	google.golang.org/protobuf v1.36.12
)

require (
	golang.org/x/sys v0.49.0 // indirect
	golang.org/x/text v0.43.0 // indirect
	google.golang.org/grpc v1.85.0 // indirect
)

replace github.com/proxima-mesh/proxima => ../..
