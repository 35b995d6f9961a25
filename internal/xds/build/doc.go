// Package build makes the xDS resources of proxies from the tables of the catalog.
//
// Enter at [NewBuilder] and [Follow]; [Builder.Connect] gives a stream what it follows.
// Resources are made once for all proxies that share them: endpoints for a zone, clusters,
// listeners and routes for a class, and for one proxy what is inbound. They are made when a
// proxy uses them, and brought up to date when something that they are made of changes.
//
// Names and layout of resources are an interface: supervisors, policies and load reports know
// them. The package does no I/O and reads no clock. Transport is package xds.
package build
