// Package identity issues and verifies identities: it holds the certificate
// authority, the tokens, and the client certificates that tokens are exchanged for.
//
// It owns the authority's directory, the records under TokenPrefix in the
// store, and a joined machine's credentials file. Enter at Open (authority),
// Tokens, Enroll and Renewer. Authorization is in the sub-package access, never
// here.
//
// A token names one identity and carries the pin of the authority, so that a
// machine that joins can verify the server before it sends the secret. A node or
// zone uses its token once, for a certificate of 24 hours that it renews by itself;
// so it can restart without the token. An expired certificate can be renewed for a
// while by proof of its key.
//
// A certificate names the token that it descends from. Revoking the token
// withdraws all of them, and so does the deletion of a node for the tokens that
// were made before: Revocations tracks both. There is no list to distribute, since
// only the control plane checks client certificates.
package identity
