// Package znode has durable nodes as those of ZooKeeper: paths with data, versions, children, sequence numbers, and
// ephemeral nodes that live by sessions. They are in the store of the control plane, one record each, and changes are its
// transactions, so several instances of a control plane serve the same nodes.
//
// Enter at New. The package knows neither the protocol nor who may do what; it never touches what is mapped onto the
// catalogue (internal/registry/zookeeper).
package znode
