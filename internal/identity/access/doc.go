// Package access decides which user may do what on the API.
//
// It owns the rule table, the authenticator and authorizer that the API server
// plugs in, the check of what nodes and workloads write (WritePolicy), and the HTTP
// handlers that issue certificates and tokens. Enter at NewAuthenticator,
// NewAuthorizer and Rules. Package identity verifies the credentials themselves. The
// only state are the open sessions (Sessions) and the renewal times of Leases
// (Holders); both are lost when the process ends.
//
// The authorizer sees names and verbs, never objects. What depends on an object's
// content is allowed there and decided by WritePolicy, which must be called for every
// create, update, patch and delete before the store is written.
package access
