// Package skew runs earlier revisions of Proxima and this tree together: global, zones and
// agents as processes on loopback, in every pairing, under traffic.
//
// "make interop-skew" runs it and writes the table in docs/how-to/upgrade.md. It builds the
// revisions from git, so it takes minutes, and without PROXIMA_SKEW its test is skipped. The
// tests of the table and of the list of revisions are quick and run always.
package skew
