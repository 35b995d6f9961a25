package mcs

import (
	"fmt"
	"io"
	"net"
	"os"
	"time"
)

// connectVariable in the environment makes this program the nc of the request pods.
const connectVariable = "PROXIMA_MCS_CONNECT"

// connect does what the suite uses nc for, "nc -v -w 2 -4 HOST PORT": it sends its input to a
// TCP port and prints what comes back.
func connect(args []string) int {
	const patience = 2 * time.Second
	network, rest := "tcp", []string{}
	for i := 0; i < len(args); i++ {
		switch args[i] {
		case "-4":
			network = "tcp4"
		case "-6":
			network = "tcp6"
		case "-v":
		case "-w":
			i++
		default:
			rest = append(rest, args[i])
		}
	}
	if len(rest) != 2 {
		fmt.Fprintln(os.Stderr, "usage: nc [-4|-6] [-v] [-w SECONDS] HOST PORT")
		return 2
	}
	c, err := net.DialTimeout(network, net.JoinHostPort(rest[0], rest[1]), patience)
	if err != nil {
		fmt.Fprintln(os.Stderr, "nc:", err)
		return 1
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(patience))
	if _, err := io.Copy(c, os.Stdin); err == nil {
		_ = c.(*net.TCPConn).CloseWrite()
	}
	if _, err := io.Copy(os.Stdout, c); err != nil {
		fmt.Fprintln(os.Stderr, "nc:", err)
		return 1
	}
	return 0
}
