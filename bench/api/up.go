package main

import (
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
)

// up measures what one machine pays for having Proxima at all.
func (b *bench) up(ctx context.Context) error {
	dir, err := os.MkdirTemp("", "proxima-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	var first, again durations
	for i := range b.starts + 1 {
		p, err := b.startUp(ctx, dir)
		if err != nil {
			return err
		}
		if i == 0 {
			first = append(first, p.ready)
			if err := pause(ctx, b.idleAfter); err != nil {
				p.stop()
				return err
			}
			memory, err := p.resident()
			if err != nil {
				p.stop()
				return err
			}
			b.atMost("\"up\", idle: memory", memory, 110, "%.0f MB")
		} else {
			again = append(again, p.ready)
		}
		p.stop()
	}
	b.atMost("\"up\": first start to ready", first.quantile(0.5)/1000, 1, "%.2f s")
	b.atMost("\"up\": start to ready, p50", again.quantile(0.5)/1000, 1, "%.2f s")
	return b.size()
}

func (b *bench) startUp(ctx context.Context, dir string) (*process, error) {
	args := []string{"up", "--mode", "userspace", "--service-cidr", "127.96.0.0/16", "--node-name", "bench"}
	for _, flag := range []string{"--grpc-port", "--dns-port", "--health-port", "--metrics-port"} {
		address, err := freePort()
		if err != nil {
			return nil, err
		}
		_, port, err := net.SplitHostPort(address)
		if err != nil {
			return nil, err
		}
		args = append(args, flag, port)
	}
	return b.start(ctx, dir, args...)
}

// size of the program without symbols. "make build" leaves them out; others are
// stripped here if that can be done.
func (b *bench) size() error {
	dir, err := os.MkdirTemp("", "proxima-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	stripped := filepath.Join(dir, "proxima")
	if err := exec.Command("strip", "-o", stripped, b.binary).Run(); err != nil {
		stripped = b.binary
	}
	info, err := os.Stat(stripped)
	if err != nil {
		return err
	}
	b.atMost("size of the program, "+runtime.GOOS+"/"+runtime.GOARCH, float64(info.Size())/1e6, 120, "%.1f MB")
	return nil
}
