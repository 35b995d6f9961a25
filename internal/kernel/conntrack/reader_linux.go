package conntrack

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/proxima-mesh/proxima/internal/kernel/nfnl"
)

const (
	// burst reads, each of up to 32 KiB or some 120 flows, then a pause: the dump of a large
	// table does not keep a core from others for long.
	burst = 64
	// burstPause between two bursts.
	burstPause = 100 * time.Millisecond

	// readSize is what the kernel puts into one message of a dump at most (af_netlink.c).
	readSize = 32 << 10
	// answerTimeout of a single read: the kernel answers within the call.
	answerTimeout = 10 * time.Second

	accountSysctl = "/proc/sys/net/netfilter/nf_conntrack_acct"
	countSysctl   = "/proc/sys/net/netfilter/nf_conntrack_count"
)

// Reader reads the translated flows of one network namespace, with their bytes. It
// allocates nothing once it is made. Not safe for concurrent use.
type Reader struct {
	namespace int
	buf       []byte
	request   []byte
	entry     Entry
	usage     unix.Rusage
	timer     *time.Timer
}

// NewReader reads the namespace of a file descriptor, or of the calling thread if it is 0.
func NewReader(namespace int) *Reader {
	r := &Reader{namespace: namespace, buf: make([]byte, readSize), timer: time.NewTimer(0)}
	<-r.timer.C
	var a nfnl.Attrs
	// Linux 5.8 and later leave the others out.
	a.U32(ctaStatus, statusDNAT)
	a.U32(ctaStatusMask, statusDNAT)
	header := make([]byte, 0, 20+len(a.Bytes()))
	header = binary.NativeEndian.AppendUint32(header, uint32(20+len(a.Bytes())))
	header = binary.NativeEndian.AppendUint16(header, unix.NFNL_SUBSYS_CTNETLINK<<8|ctGet)
	header = binary.NativeEndian.AppendUint16(header, unix.NLM_F_REQUEST|unix.NLM_F_DUMP)
	header = binary.NativeEndian.AppendUint32(header, 1) // sequence
	header = binary.NativeEndian.AppendUint32(header, 0) // port: the kernel's to fill in
	// struct nfgenmsg: AF_UNSPEC is both families.
	header = append(header, unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, 0)
	r.request = append(header, a.Bytes()...)
	return r
}

// Dump passes translated flows of both families to each, at most limit of them; 0: all. The
// order is that of the kernel's hash table, whose key is random: the first flows are a
// random sample, and the same ones each time as long as they live. It blocks for the time
// of the dump, pauses included; an ended ctx ends it with an error.
func (r *Reader) Dump(ctx context.Context, limit int, each func(*Entry)) (d Dump, err error) {
	runtime.LockOSThread() // for the CPU time of the thread
	defer runtime.UnlockOSThread()
	fd, err := r.open()
	if err != nil {
		return d, err
	}
	// Closing the socket ends a dump that was not read to its end.
	defer func() { err = errors.Join(err, unix.Close(fd)) }()
	begin := r.cpu()
	defer func() { d.CPU = r.cpu() - begin }()
	if _, err := unix.Write(fd, r.request); err != nil {
		return d, fmt.Errorf("asking for the connection tracking table: %w", err)
	}
	for reads := 1; ; reads++ {
		n, err := unix.Read(fd, r.buf)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return d, fmt.Errorf("reading the connection tracking table: %w", err)
		}
		done, err := r.messages(r.buf[:n], limit, &d, each)
		if err != nil {
			return d, fmt.Errorf("reading the connection tracking table: %w", err)
		}
		if done {
			return d, nil
		}
		if reads%burst == 0 && !r.pause(ctx) {
			return d, context.Cause(ctx)
		}
	}
}

// pause between two bursts; false: ctx ended.
func (r *Reader) pause(ctx context.Context) bool {
	r.timer.Reset(burstPause)
	select {
	case <-ctx.Done():
		return false
	case <-r.timer.C:
		return true
	}
}

// messages of one read. done: it was the last, or the limit is reached.
func (r *Reader) messages(b []byte, limit int, d *Dump, each func(*Entry)) (done bool, err error) {
	const header, family = 16, 4
	for len(b) >= header {
		n := int(binary.NativeEndian.Uint32(b))
		if n < header || n > len(b) {
			return true, errors.New("a netlink message is not complete")
		}
		switch binary.NativeEndian.Uint16(b[4:]) {
		case unix.NLMSG_DONE, unix.NLMSG_ERROR:
			if n >= header+4 {
				if code := int32(binary.NativeEndian.Uint32(b[header:])); code < 0 {
					return true, unix.Errno(-code)
				}
			}
			if binary.NativeEndian.Uint16(b[4:]) == unix.NLMSG_DONE {
				d.Whole = true
				return true, nil
			}
		default:
			if n >= header+family && r.entry.Parse(b[header+family:n]) {
				if limit > 0 && d.Flows == limit {
					return true, nil
				}
				d.Flows++
				each(&r.entry)
			}
		}
		b = b[min((n+3)&^3, len(b)):]
	}
	return false, nil
}

func (r *Reader) open() (fd int, err error) {
	err = nfnl.Inside(r.namespace, func() (err error) {
		fd, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
		return err
	})
	if err != nil {
		return -1, fmt.Errorf("opening a netlink socket: %w", err)
	}
	timeout := unix.NsecToTimeval(answerTimeout.Nanoseconds())
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout); err != nil {
		return -1, errors.Join(fmt.Errorf("preparing a netlink socket: %w", err), unix.Close(fd))
	}
	return fd, nil
}

// cpu of the calling thread.
func (r *Reader) cpu() time.Duration {
	if unix.Getrusage(unix.RUSAGE_THREAD, &r.usage) != nil {
		return 0
	}
	return time.Duration(r.usage.Utime.Nano() + r.usage.Stime.Nano())
}

// Accounting turns on the counting of bytes in the namespace, and returns whether it was on:
// flows that are older than it are not counted. In a container /proc/sys is read-only, and the
// kernel is made to turn it on otherwise: by a rule of nftables that reads the bytes of a flow
// (Linux, nft_ct.c: nft_ct_get_init), which is in the transaction alone.
func (r *Reader) Accounting() (was bool, err error) {
	err = nfnl.Inside(r.namespace, func() error {
		now, err := os.ReadFile(accountSysctl)
		if err != nil {
			return err
		}
		if was = strings.TrimSpace(string(now)) != "0"; was {
			return nil
		}
		err = os.WriteFile(accountSysctl, []byte("1\n"), 0o644)
		if err != nil && accountByRule() == nil {
			if on, failed := readSetting(accountSysctl); failed == nil && on != 0 {
				return nil
			}
		}
		return err
	})
	if err != nil {
		return was, fmt.Errorf("turning on the kernel's counting of bytes per flow: %w", err)
	}
	return was, nil
}

// Counting reports whether the kernel counts bytes of new flows in the namespace.
func (r *Reader) Counting() (on bool, err error) {
	n, err := r.sysctl(accountSysctl)
	return n != 0, err
}

// Tracked is the number of all flows of the namespace, translated or not.
func (r *Reader) Tracked() (int, error) { return r.sysctl(countSysctl) }

func (r *Reader) sysctl(name string) (n int, err error) {
	err = nfnl.Inside(r.namespace, func() error {
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		n, err = strconv.Atoi(strings.TrimSpace(string(text)))
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("reading %s: %w", name, err)
	}
	return n, nil
}

// Life names what the table belongs to: the namespace, and the machine's time since it was
// started.
func (r *Reader) Life() (life uint64, err error) {
	err = nfnl.Inside(r.namespace, func() error {
		boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
		if err != nil {
			return err
		}
		namespace, err := os.Readlink("/proc/thread-self/ns/net")
		if err != nil {
			return err
		}
		h := fnv.New64a()
		_, _ = h.Write(append(boot, namespace...))
		life = h.Sum64()
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("identifying the connection tracking table: %w", err)
	}
	return life, nil
}
