// Package release verifies the files of a release, and makes what accompanies them: checksums,
// and statements about how each file was made, signed or not.
//
// It owns the formats: SHA256SUMS, in-toto statements with SLSA provenance, DSSE envelopes.
// Enter at Verify, and for the other direction at FormatSums, NewStatement and Key.Sign. It
// builds nothing: tools/release does. It never uses the network.
package release
