// Package dubbo runs unmodified providers and consumers of dubbo-go against the registries of Proxima. It is a
// module of its own, so that the product does not link them.
//
// Each provider and consumer is a process: the test binary starts itself. dubbo-go has one
// application in a process.
package dubbo
