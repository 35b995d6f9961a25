// Package mesh holds the names by which parts of a mesh are identified, and what is
// trusted for them: trust domains, SPIFFE IDs, server names of services (SNI), the
// roots per mesh, and the verification of a peer by them.
//
// Enter at DomainOf and Workload for names, at SNI and Index for server names, at
// NewTrust and Trust.VerifyClient for verification. Everything is pure: the package
// does no I/O, keeps no clock and never signs. Package authority signs.
//
// Every check fails closed: an empty set matches nothing, a name that two services
// claim belongs to neither, a domain without roots has no valid certificate.
//
// Sources: SPIFFE-ID and X509-SVID (github.com/spiffe/spiffe/tree/main/standards),
// RFC 5280 for certificates, RFC 6066 section 3 for SNI.
package mesh
