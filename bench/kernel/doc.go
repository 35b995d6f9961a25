// Command kernel measures the modes that program the kernel beside the layout
// that kube-proxy documents for its nftables mode (a chain per service and per
// endpoint, reached by a verdict map), in network namespaces of its own that have
// no way out. It needs root, Linux, nft and iptables.
//
//	go run ./bench/kernel [-smoke]
//
// Both sides take turns, so that a busy machine disturbs them alike; only the
// ratios mean anything. What kube-proxy itself costs is not in its figures: they
// are those of "nft -f" with the rules that it would write.
package main
