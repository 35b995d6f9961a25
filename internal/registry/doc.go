// Package registry is what the servers of registry protocols (Nacos, Eureka, ZooKeeper) have in
// common: which object an instance is, who keeps it alive, and what clients of a zone see of a
// service, by whichever protocol its instances came.
//
// An instance is a Dataplane, so that Services select it, plans count it, and every other
// interface shows it. Enter at Registrar to write instances, at Index to read and follow
// services. The package knows no protocol; package app joins it to the API and the servers.
package registry
