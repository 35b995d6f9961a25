package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/internal/kernel/conntrack"
	"github.com/proxima-mesh/proxima/internal/kernel/sockdiag"
)

// openConnections counts the open TCP connections at endpoints of this machine, a JSON list of
// "ADDRESS:PORT". The kernel's connection tracking knows also those of workloads in network
// namespaces of their own; it needs CAP_NET_ADMIN, and tracks nothing unless a rule asks for
// it, as those of the kernel modes do. Sockets are seen in every mode and by every user, but
// in the agent's namespace only. The greater number counts.
func openConnections(endpoints []byte) (map[netip.AddrPort]int, error) {
	var list []netip.AddrPort
	if err := json.Unmarshal(endpoints, &list); err != nil {
		return nil, status.Errorf(codes.InvalidArgument, "read the endpoints whose connections are asked for: %v", err)
	}
	at := make(map[netip.AddrPort]bool, len(list))
	for _, endpoint := range list {
		at[netip.AddrPortFrom(endpoint.Addr().Unmap(), endpoint.Port())] = true
	}
	open, socketErr := sockdiag.Connections(at)
	tracked, trackErr := trackedConnections(at)
	if socketErr != nil && trackErr != nil {
		return nil, errors.Join(socketErr, trackErr)
	}
	if open == nil {
		open = make(map[netip.AddrPort]int)
	}
	for endpoint, n := range tracked {
		open[endpoint] = max(open[endpoint], n)
	}
	return open, nil
}

func trackedConnections(at map[netip.AddrPort]bool) (map[netip.AddrPort]int, error) {
	table, err := conntrack.Open(0)
	if err != nil {
		return nil, err
	}
	defer table.Close()
	return table.Connections(at)
}

// countTimeout bounds the question for a node's connections: a machine that is being
// rebooted does not answer, and who waits for a drain asks again.
const countTimeout = 2 * time.Second

// openAt asks the agent of a node for the open connections of its workloads, by way of
// another instance if that has the agent's stream. It is a drain.Counter.
func (c *agentCalls) openAt(ctx context.Context, node string) (map[netip.AddrPort]int, error) {
	ctx, cancel := context.WithTimeout(ctx, countTimeout)
	defer cancel()
	call := admin.ProxyCall{Question: admin.ProxyConnections, Name: node}
	body, err := c.Call(ctx, call)
	if errors.Is(err, admin.ErrElsewhere) {
		body, err = admin.CallElsewhere(ctx, c.others, c.log, call, err)
	}
	if err != nil {
		return nil, errors.New(status.Convert(err).Message())
	}
	var answer admin.NodeConnections
	if err := json.Unmarshal(body, &answer); err != nil {
		return nil, fmt.Errorf("read the answer of the agent of node %s: %w", node, err)
	}
	if answer.Open == nil {
		answer.Open = map[netip.AddrPort]int{}
	}
	return answer.Open, nil
}
