package kube_test

import (
	"fmt"
	"net"
	"os"
)

// podVariable names the pod in whose place this program runs: it answers on port 8080, TCP,
// with that name and the address that it sees.
const podVariable = "PROXIMA_KUBE_POD"

func runPod(name string) int {
	l, err := net.Listen("tcp", ":8080")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	for {
		c, err := l.Accept()
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		from, _, _ := net.SplitHostPort(c.RemoteAddr().String())
		fmt.Fprintf(c, "%s %s", name, from)
		_ = c.Close()
	}
}
