// Package identity says who somebody is: it holds the certificate authority,
// the tokens, and the client certificates that tokens buy.
//
// It owns the authority's directory, the records under TokenPrefix in the
// store, and a joined machine's credentials file. Enter at Open (authority),
// Tokens, Enroll and Renewer. What somebody may do is decided in the
// sub-package access, never here.
//
// A token names one identity and carries the pin of the authority, so that a
// machine that joins can tell the right server from a wrong one before it shows
// the secret. A node or zone spends its token once, for a certificate of 24
// hours that it renews by itself; so it can restart without the token. Revoking
// a token also ends the renewals of the certificates it bought; the last of them
// runs out within 24 hours. There is no revocation list.
package identity
