// Package apiserver serves Proxima's state as a Kubernetes API: the same URLs,
// verbs, encodings and errors, for unmodified clients.
//
// Enter at New. The way of a request: server.go wires the generic server;
// access.go lets it in; install.go puts one registry for each kind where its
// URLs are, made in registry.go and strategy.go from its resource.Descriptor;
// storage goes through kvstorage to store.Store. Namespaces, Services and Events
// have behaviour of their own, in files of these names. client.go is the
// in-process way in, along the same registries.
//
// It owns the one write path, not the rules: descriptors define what is valid,
// defaulted and printed, and ipam allocates addresses. It never writes to the
// store past a registry, and never authenticates users itself. What a write
// depends on (its namespace, the mesh of a namespace) is guarded in the write's
// own transaction, so that instances which share a store agree.
package apiserver
