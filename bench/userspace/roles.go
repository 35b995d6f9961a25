package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"

	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/proxy/userspace"
)

// serve plays a role until standard input ends.
func serve(role, vip, target string) error {
	switch role {
	case "server":
		return accept(func(c net.Conn) {
			_, _ = io.Copy(c, c)
			_ = c.Close()
		})
	case "naive":
		return accept(func(c net.Conn) { copyBoth(c, target) })
	case "userspace":
		return ours(vip, target)
	}
	return fmt.Errorf("there is no role %q", role)
}

func untilInputEnds() { _, _ = io.Copy(io.Discard, os.Stdin) }

func accept(handle func(net.Conn)) error {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(ln.Addr())
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go handle(c)
		}
	}()
	untilInputEnds()
	return ln.Close()
}

// copyBoth is the proxy that one writes first: no retry, no limit, no counter.
func copyBoth(client net.Conn, target string) {
	backend, err := net.Dial("tcp", target)
	if err != nil {
		_ = client.Close()
		return
	}
	go func() {
		_, _ = io.Copy(backend, client)
		_ = backend.(*net.TCPConn).CloseWrite()
	}()
	_, _ = io.Copy(client, backend)
	_ = client.Close()
	_ = backend.Close()
}

func ours(vip, target string) error {
	at, err := netip.ParseAddrPort(vip)
	if err != nil {
		return err
	}
	to, err := netip.ParseAddrPort(target)
	if err != nil {
		return err
	}
	m, err := userspace.New(userspace.Options{})
	if err != nil {
		return err
	}
	port := proxy.Port{Protocol: proxy.TCP, Port: at.Port()}
	name := proxy.ServiceName{Namespace: "default", Name: "bench"}
	state := &proxy.PortState{
		Name:    proxy.PortName{ServiceName: name},
		Service: &proxy.Service{Name: name, ClusterIPs: []netip.Addr{at.Addr()}, Ports: []proxy.Port{port}},
		Port:    port,
		IPv4:    proxy.Choice{Cluster: []proxy.Target{{Addr: to, Weight: 1}}},
	}
	if err := m.Apply(context.Background(), []proxy.Change{{Name: state.Name, State: state}}); err != nil {
		return err
	}
	fmt.Println(at)
	untilInputEnds()
	return m.Close(context.Background())
}
