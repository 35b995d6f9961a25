// Package dubbo keeps what consumers of Dubbo 3 need beside the instances of an application: its
// metadata, as an entry of the configuration for each revision, and the mappings from interfaces
// to applications. Consumers read both by the registry protocol that they speak.
//
// Metadata come from the annotations of Services, and from providers, which are asked once for
// each revision. Enter at New. It keeps instances nowhere, and speaks to no consumer.
package dubbo
