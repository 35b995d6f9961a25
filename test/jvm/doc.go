// Package jvm runs unmodified clients of the JVM against the servers of registry protocols: the client of
// Nacos, Spring Cloud with Eureka and its load balancer, and service discovery of Curator. It is a module
// of its own, run by make interop-registries, as it needs a JDK and mvn.
package jvm
