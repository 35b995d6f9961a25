// Package rotation replaces the authority of a mesh without a connection that fails:
// the new one is trusted, then it issues, then the old one is distrusted, each after
// every live peer has acknowledged the step before.
//
// It owns the state of a rotation and its steps. Enter at New, Start and Step, which
// are pure functions of a State, and at Driver, which keeps the State in a store. It
// never signs, never opens a connection, and sees authorities by ID and roots only.
//
// # Why no connection fails
//
// A certificate is only ever of the issuer at the time that it was signed. Before an
// authority becomes issuer, every live peer trusts it (phase Trusting is acknowledged).
// Before an authority is distrusted, no live peer has a certificate of it (phase
// Issuing is acknowledged). A peer is live while it is connected or holds a certificate
// that has not run out: a node that is cut off from its control plane still carries
// traffic, so it is waited for.
//
// # What a peer does
//
// A peer that gets generation G first makes the roots of G durable and uses them, then
// replaces every certificate that is not of G's issuer, then acknowledges G. A peer that
// starts from its disk has so acknowledged nothing that it would not do again.
//
// With several zones global leads, and each zone has a State of its own that follows; see
// follow.go.
//
// Turning mTLS on or off is the same change: the authority None stands for plain text.
// To trust None is to accept plain text, to issue None is to send it.
package rotation
