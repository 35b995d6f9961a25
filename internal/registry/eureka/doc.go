// Package eureka serves clients of Netflix Eureka: Spring Cloud's, and others that speak its REST
// protocol in JSON or XML.
//
// Enter at New. Instances are registered with the core (package registry), which keeps them as
// Dataplanes; a lease is kept in memory, by the instance of the control plane to which its client
// renews it. What clients fetch is kept encoded by namespace and zone, and follows each change, so there
// is no cache that runs out.
//
// The protocol: https://github.com/Netflix/eureka/wiki/Eureka-REST-operations, and what the clients of
// Spring Cloud do.
package eureka
