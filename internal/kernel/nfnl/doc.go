// Package nfnl speaks nfnetlink: it writes nf_tables messages, sends them as one
// transaction, reads tables back and listens to their changes. It knows what
// messages look like and nothing of what Proxima keeps in them.
//
// Enter at [Open], [Batch] and [Rule]. Encoders and decoders are pure; decoders
// accept any bytes. The kernel's headers are the source of all numbers:
// linux/netfilter/nf_tables.h, nfnetlink.h and netlink.h; those of user data,
// which only nft reads, are from libnftnl's udata.h and nftables' datatype.h.
//
// It works on Linux alone.
package nfnl
