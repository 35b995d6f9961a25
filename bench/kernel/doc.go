// Command kernel measures the modes that program the kernel, and the agent that
// drives them, compared with kube-proxy, in network namespaces of its own that have
// no way out. It needs root, Linux, nft and iptables.
//
//	go run ./bench/kernel [-smoke] [-only programming,path,ebpf,iptables,ipvs,agent] [-binary bin/proxima]
//
// Sides take turns, round by round, so that a busy machine disturbs them alike.
// A figure is the median over the rounds, a ratio the median of the rounds' ratios.
// Each line has the figure and the goal. The command exits with 1 if something
// did not work, and not because a goal was missed: that depends on the machine.
//
// What kube-proxy itself costs is in the part "agent" alone, and only if the
// environment variable KUBE_PROXY names a binary of it. Elsewhere its side is
// "nft -f" or "iptables-restore" with the text that kube-proxy would hand over.
package main
