// Package access decides who may do what on the API.
//
// It owns the rule table, the authenticator and authorizer that the API server
// plugs in, the check of what nodes and workloads write (WritePolicy), and the HTTP handlers
// that issue certificates and tokens. Enter at NewAuthenticator, NewAuthorizer
// and Rules. Who somebody is, is proven by package identity. The only state is what
// is open (Sessions) and when Leases were renewed (Holders); both are made anew
// with the process.
//
// The authorizer sees names and verbs, never objects. What depends on an
// object's content is allowed there and decided by WritePolicy, which must be asked in
// every create, update, patch and delete before the store is written.
package access
