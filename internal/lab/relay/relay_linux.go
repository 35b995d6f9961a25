package relay

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// maxPacket is the most that one read gives: a header and an IP packet.
const maxPacket = headerSize + 65536

// Run makes the device and relays until ctx ends, which is no error. The device is gone when it
// returns.
func Run(ctx context.Context, cfg Config) error {
	if err := cfg.Check(); err != nil {
		return err
	}
	tun, err := open(cfg.Device)
	if err != nil {
		return fmt.Errorf("make device %s: %w", cfg.Device, err)
	}
	defer tun.Close()
	stop := context.AfterFunc(ctx, func() { _ = tun.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	preferred()
	r := &relay{tun: tun, delay: cfg.Delay, dice: newDice(cfg.Loss, cfg.Seed), queue: newQueue(queueBytes)}
	var writing sync.WaitGroup
	writing.Go(r.send)
	if cfg.Ready != nil {
		cfg.Ready()
	}
	err = r.receive()
	r.queue.close()
	writing.Wait()
	if ctx.Err() != nil {
		return nil
	}
	return err
}

type relay struct {
	tun   *os.File
	delay time.Duration
	dice  *dice
	queue *queue
}

// receive reads packets, drops some, and queues the others.
func (r *relay) receive() error {
	in, out := make([]byte, maxPacket), make([]byte, 0, maxPacket)
	for {
		n, err := r.tun.Read(in)
		if err != nil {
			return fmt.Errorf("read a packet: %w", err)
		}
		due := now() + r.delay
		p := parse(in[:n])
		for first, last := range r.dice.runs(p.segments()) {
			part := p.slice(out, first, last)
			if r.delay == 0 {
				r.write(part)
				continue
			}
			r.queue.put(part, due)
		}
	}
}

// send writes each packet when it is due. The thread is its own: the runtime's timers are
// 1 ms late.
func (r *relay) send() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for {
		raw, due, ok := r.queue.next()
		if !ok {
			return
		}
		if due > now() {
			at := unix.NsecToTimespec(int64(due))
			for errors.Is(unix.ClockNanosleep(unix.CLOCK_MONOTONIC, unix.TIMER_ABSTIME, &at, nil), unix.EINTR) {
			}
		}
		r.write(raw)
		r.queue.done(raw)
	}
}

// write gives a packet back to the kernel. What that does not take is lost, as anything may
// be on a link: a device that is down, or a packet that is malformed.
func (r *relay) write(raw []byte) { _, _ = r.tun.Write(raw) }

// now is the time of the monotonic clock.
func now() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		panic(fmt.Sprintf("read the monotonic clock: %v", err)) // clock_gettime(2): there is one
	}
	return time.Duration(t.Nano())
}

// open makes a TUN device of which packets have a header, so that a packet may be many
// segments of TCP. It lives as long as the file.
func open(name string) (*os.File, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open /dev/net/tun: %w", err)
	}
	req, err := unix.NewIfreq(name)
	if err == nil {
		req.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, req)
	}
	if err == nil {
		err = unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, unix.TUN_F_CSUM|unix.TUN_F_TSO4|unix.TUN_F_TSO6|unix.TUN_F_TSO_ECN)
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), "/dev/net/tun"), nil
}

// schedParam is struct sched_param (sched.h).
type schedParam struct{ priority int32 }

// preferred makes the threads of this process run before those of ordinary ones, so that
// packets are on time while the computer is busy. Where that is not allowed they may be late.
func preferred() {
	tasks, err := filepath.Glob("/proc/self/task/[0-9]*")
	if err != nil {
		return
	}
	for _, task := range tasks {
		tid, err := strconv.Atoi(filepath.Base(task))
		if err != nil {
			continue
		}
		param := schedParam{priority: 1}
		_, _, _ = unix.Syscall(unix.SYS_SCHED_SETSCHEDULER, uintptr(tid), unix.SCHED_RR, uintptr(unsafe.Pointer(&param)))
	}
}
