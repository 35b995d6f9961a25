// Package account counts the bytes and open connections of service ports whose traffic the
// kernel translates, by reading the connection tracking table once a minute.
//
// [Counter] is the driver, [Ledger] adds up what dumps say, and [Directory] knows which
// service port and zone a flow is of. Nothing here is on the path of a packet. Modes that
// carry traffic themselves count exactly, and do not need this package.
package account
