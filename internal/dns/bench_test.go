package dns

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/proxima-mesh/proxima/internal/dns/records"
)

// childVariable makes the test binary a server for BenchmarkServer, so that its
// CPU time can be separated from that of the clients.
const childVariable = "PROXIMA_DNS_BENCH_SERVER"

func serveChild() {
	z := records.New()
	z.Apply(sample())
	s, err := New(Config{Zone: z})
	if err != nil {
		panic(err)
	}
	conn, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		panic(err)
	}
	fmt.Println(conn.LocalAddr())
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	if err := s.ServeUDP(ctx, conn); err != nil {
		panic(err)
	}
}

// BenchmarkServer reports answers for each second of the server's CPU, user and
// system, over sockets.
func BenchmarkServer(b *testing.B) {
	for _, name := range []string{"web.default.svc.cluster.local.", "db.default.svc.cluster.local."} {
		b.Run(strings.TrimSuffix(name, ".default.svc.cluster.local."), func(b *testing.B) { benchmarkServer(b, name) })
	}
}

func benchmarkServer(b *testing.B, name string) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childVariable+"=1")
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	addr, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		b.Fatal(err)
	}
	const clients = 8
	q := packed(b, name, dns.TypeA, edns(1232, false))
	b.ResetTimer()
	var running sync.WaitGroup
	for range clients {
		running.Go(func() {
			if err := askMany(strings.TrimSpace(addr), q, b.N/clients+1); err != nil {
				b.Error(err)
			}
		})
	}
	running.Wait()
	b.StopTimer()
	stdin.Close()
	if err := cmd.Wait(); err != nil {
		b.Fatal(err)
	}
	cpu := cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	b.ReportMetric(float64(b.N)/cpu.Seconds(), "answers/cpu-s")
}

// askMany asks with some questions under way at a time.
func askMany(addr string, q []byte, n int) error {
	conn, err := net.Dial("udp", addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	const window = 8 // what all clients have under way fits the server's socket
	buf := make([]byte, 2048)
	for sent, got := 0, 0; got < n; {
		for ; sent < n && sent-got < window; sent++ {
			if _, err := conn.Write(q); err != nil {
				return err
			}
		}
		_ = conn.SetReadDeadline(time.Now().Add(time.Second))
		if _, err := conn.Read(buf); err != nil {
			return err
		}
		got++
	}
	return nil
}
