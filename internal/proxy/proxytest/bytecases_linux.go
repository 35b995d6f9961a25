package proxytest

import (
	"io"
	"iter"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/proxima-mesh/proxima/internal/kernel/conntrack"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/proxy/account"
)

// byteCases: what a connection carries is counted.
var byteCases = []kernelCase{
	{name: "bytes", needs: []Feature{Bytes}, run: bytesCounted},
}

// bytesCounted: 200 MiB each way through a virtual address are counted as 200 MiB, and at most
// 1 % more, as headers count where the kernel does; for the zone of the endpoint, by a process
// of the node and by a workload behind it.
func bytesCounted(k *kernel) {
	const payload = 200 << 20
	k.apply(k.svc(0, k.on(remote1)))
	read := k.accountant()
	for _, c := range []client{k.node(), k.pod()} {
		before := read()
		conn, err := c.open(proxy.TCP, k.at(k.vip(0)), prompt)
		if err != nil {
			k.Fatal(err)
		}
		_ = conn.SetDeadline(time.Now().Add(time.Minute))
		hello, err := k.carry(conn, payload)
		_ = conn.Close()
		if err != nil {
			k.Fatalf("%s: %v", c.name, err)
		}
		now := read()
		for end := time.Now().Add(prompt); now.Closed == before.Closed && time.Now().Before(end); now = read() {
			time.Sleep(10 * time.Millisecond) // the kernel sends no notification
		}
		if now.Zone != "zone-b" || now.Opened-before.Opened != 1 || now.Closed-before.Closed != 1 || now.Open != 0 || now.Estimated != 0 {
			k.Errorf("%s: %+v, then %+v", c.name, before, now)
		}
		for what, x := range map[string][2]uint64{
			"in": {now.BytesIn - before.BytesIn, payload}, "out": {now.BytesOut - before.BytesOut, payload + uint64(hello)},
		} {
			ratio := float64(x[0]) / float64(x[1])
			k.Logf("%s, %s: %.5f of the payload", c.name, what, ratio)
			if ratio < 1 || ratio > 1.01 {
				k.Errorf("%s, %s: %d bytes are counted, %.4f of the payload", c.name, what, x[0], ratio)
			}
		}
	}
}

// carry so many bytes to a backend, which says hello and sends them back.
func (k *kernel) carry(c net.Conn, payload int64) (hello int, err error) {
	line := make([]byte, 1)
	for hello = 0; line[0] != '\n'; hello++ {
		if _, err := io.ReadFull(c, line); err != nil {
			return hello, err
		}
	}
	sent := make(chan error, 1)
	go func() {
		_, err := io.CopyN(c, zeros{}, payload)
		sent <- err
	}()
	_, err = io.CopyN(io.Discard, c, payload)
	if e := <-sent; e != nil {
		err = e
	}
	return hello, err
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { return len(b), nil }

// accountant reads what was exchanged by the case's TCP port so far, in the one zone that has
// an endpoint: as the mode counts or, where that does not, as the agent does, from the
// kernel's table of connections.
func (k *kernel) accountant() func() proxy.Exchange {
	k.Helper()
	port := proxy.PortName{ServiceName: k.svc(0).Name, Port: "tcp"}
	of := func(rows iter.Seq2[proxy.PortName, proxy.Exchange]) (x proxy.Exchange) {
		for name, row := range rows {
			if name == port { // once for each family
				x.BytesIn, x.BytesOut, x.Estimated = x.BytesIn+row.BytesIn, x.BytesOut+row.BytesOut, x.Estimated+row.Estimated
				x.Opened, x.Closed, x.Open = x.Opened+row.Opened, x.Closed+row.Closed, x.Open+row.Open
				x.Zone, x.Kept = row.Zone, row.Kept
			}
		}
		return x
	}
	if own, ok := k.mode.(proxy.Accountant); ok {
		return func() proxy.Exchange {
			_, rows := own.Exchanges()
			return of(rows)
		}
	}
	table := conntrack.NewReader(0)
	if _, err := table.Accounting(); err != nil {
		k.Fatal(err)
	}
	own := k.net.describe().Addresses
	directory := account.NewDirectory(func(a netip.Addr) bool { return slices.Contains(own, a) })
	var all []proxy.Change
	for name, state := range k.current {
		all = append(all, proxy.Change{Name: name, State: state})
	}
	directory.Update(all)
	ledger := account.NewLedger([2]uint64{1, 3}, directory)
	read := func() proxy.Exchange {
		ledger.Begin(1)
		if d, err := table.Dump(k.Context(), 0, func(e *conntrack.Entry) { ledger.Add(e, true) }); err != nil || !d.Whole {
			k.Fatalf("reading the table of connections: %+v, %v", d, err)
		}
		ledger.End(true, nil)
		return of(func(yield func(proxy.PortName, proxy.Exchange) bool) {
			for _, row := range ledger.Exchanges(nil) {
				if !yield(row.Port, row.Exchange) {
					return
				}
			}
		})
	}
	read() // what there was before is where counting begins
	return read
}
