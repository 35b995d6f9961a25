// Package zookeeper serves clients of ZooKeeper by its wire protocol: the part of a tree that registries
// are, made of what the core has.
//
//	/services/APP/ID                               instances of applications (Curator, Dubbo, Spring Cloud)
//	/dubbo/INTERFACE/providers/URL, …/consumers/…  instances of single RPC services of Dubbo
//	/dubbo/INTERFACE/configurators/URL, …/routers  rules of Dubbo 2
//	/dubbo/mapping/INTERFACE                       applications that serve an interface
//	/dubbo/APP/REVISION, /dubbo/metadata/…         metadata of Dubbo
//	/dubbo/config/GROUP/NAME                       configuration
//	/NAMESPACE/…                                   the same for a namespace other than the default
//
// Enter at New. A tree is kept for the clients of each zone: it follows the index and the configuration of
// package registry, and calls the watches of clients under the lock under which it is read, so that a
// client has the event before it can read what it is about. A write is answered when the tree of its
// client shows it.
//
// Parents in the tree exist by themselves. Instances that came by another protocol are nodes, too, which
// no client of ZooKeeper can change. Other paths are refused with NoAuth.
//
// The protocol is that of ZooKeeper 3.8 (zookeeper.jute in its sources).
package zookeeper
