package ipvs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/proxy/nftables"
)

// Mode is the IPVS proxy.Mode: the nftables mode, whose table hands lists over to IPVS.
type Mode struct {
	*nftables.Mode
	table *table
	log   *slog.Logger
	// registerer has the metrics until Close; nil: none.
	registerer prometheus.Registerer

	stop  chan struct{}
	ended sync.WaitGroup
	once  sync.Once
}

// probe is the mark of the service that Check makes; no service port has the number 0.
var probe = nftables.ListMark(0, false)

// Check finds out whether IPVS works here with a scheduler: it loads their modules, and makes a service of each family, which it
// deletes again. An error is a *MissingError where the kernel lacks something.
func Check(scheduler string) error {
	if err := CheckScheduler(scheduler); err != nil {
		return err
	}
	need := []string{scheduler}
	if scheduler == Default {
		need = []string{"rr", "wrr"}
	}
	load("ip_vs")
	c, err := Open()
	if err != nil {
		if errors.Is(err, unix.EPERM) {
			return err
		}
		return &MissingError{[]string{"ip_vs"}, err}
	}
	err = check(c, need)
	return errors.Join(err, c.Close())
}

func check(k Kernel, need []string) error {
	for _, scheduler := range need {
		for _, family := range []proxy.Family{proxy.IPv4, proxy.IPv6} {
			s := Service{Key{family, probe}, scheduler}
			err := k.AddService(s)
			if errors.Is(err, unix.EEXIST) { // a check that was killed
				err = k.SetService(s)
			}
			switch {
			case family == proxy.IPv6 && errors.Is(err, unix.EAFNOSUPPORT):
				continue
			case errors.Is(err, unix.ENOENT):
				return &MissingError{[]string{"ip_vs_" + scheduler}, err}
			case err != nil:
				return err
			}
			if err := k.DeleteService(s.Key); err != nil {
				return err
			}
		}
	}
	return nil
}

// load a module, where that can be done. Whether it worked is seen by what needs it.
func load(module string) {
	if path, err := exec.LookPath("modprobe"); err == nil && os.Geteuid() == 0 {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_ = exec.CommandContext(ctx, path, "-q", module).Run()
	}
}

// New makes a mode in the network namespace of the calling thread. It writes nothing before the first Apply.
func New(opts Options) (*Mode, error) {
	if err := CheckScheduler(opts.Scheduler); err != nil {
		return nil, err
	}
	dir := cmp.Or(opts.SysctlDir, "/proc/sys")
	if _, err := os.Stat(filepath.Join(dir, "net", "ipv4")); err != nil {
		return nil, fmt.Errorf("--ipvs-sysctl-dir: no kernel parameters of the network in %s: %w", dir, err)
	}
	log := opts.Tables.Logger
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	var err error
	k, r := opts.kernel, opts.routes
	if k == nil {
		if k, err = Open(); err != nil {
			return nil, err
		}
	}
	if r == nil {
		if r, err = openRoutes(opts.Tables.PrimaryAddresses); err != nil {
			return nil, errors.Join(err, k.Close())
		}
	}
	t := newTable(k, r, opts.Scheduler, log)
	t.ranges = opts.Tables.ServiceCIDRs
	if opts.kernel == nil || opts.SysctlDir != "" {
		settings := Settings(opts.StrictARP)
		t.settings = func() ([]string, error) { return applySettings(dir, settings) }
	}
	seconds := func(d time.Duration) uint32 { return uint32((d + time.Second - 1) / time.Second) }
	timeouts := Timeouts{seconds(opts.TCPTimeout), seconds(opts.TCPFinTimeout), seconds(opts.UDPTimeout)}
	if timeouts != (Timeouts{}) {
		if err := k.SetTimeouts(timeouts); err != nil {
			return nil, errors.Join(err, k.Close(), r.close())
		}
	}
	tables := opts.Tables
	tables.Balancer = t
	m := &Mode{table: t, log: log, stop: make(chan struct{})}
	if m.Mode, err = nftables.New(tables); err != nil {
		return nil, errors.Join(err, k.Close(), r.close())
	}
	if opts.Tables.Registerer != nil {
		if err := opts.Tables.Registerer.Register(Metrics{m.Status}); err != nil {
			return nil, errors.Join(fmt.Errorf("registering metrics of the ipvs mode: %w", err), m.Mode.Close(context.Background()), k.Close(), r.close())
		}
		m.registerer = opts.Tables.Registerer
	}
	m.ended.Go(m.watch)
	return m, nil
}

// watch compares the kernel with what it should have: IPVS tells nobody of changes.
func (m *Mode) watch() {
	runtime.LockOSThread() // whose time on a processor is measured
	defer runtime.UnlockOSThread()
	pause := idle(0)
	for {
		select {
		case <-m.stop:
			return
		case <-time.After(pause):
		}
		start := processorTime()
		n, err := m.table.compare()
		if n > 0 {
			m.log.Warn("another program changed services of IPVS, routes or kernel parameters of Proxima; they are repaired", "changes", n)
		}
		if err != nil {
			m.log.Warn("comparing IPVS failed and will be tried again", "error", err)
		}
		pause = idle(processorTime() - start)
	}
}

// processorTime of the calling thread so far.
func processorTime() time.Duration {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_THREAD, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// Name implements proxy.Mode.
func (*Mode) Name() string { return Name }

// SetRanges replaces the ranges of cluster addresses: which are routed to this machine, and refused where no service has them.
func (m *Mode) SetRanges(ranges []netip.Prefix) error {
	m.table.setRanges(ranges)
	return m.Mode.SetRanges(ranges)
}

// Close implements proxy.Mode: the kernel's state stays, so that traffic flows while the agent restarts.
func (m *Mode) Close(ctx context.Context) error {
	var errs []error
	m.once.Do(func() {
		close(m.stop)
		m.ended.Wait()
		if m.registerer != nil {
			m.registerer.Unregister(Metrics{m.Status})
		}
		errs = append(errs, m.Mode.Close(ctx), m.table.k.Close(), m.table.routes.close())
	})
	return errors.Join(errs...)
}

// Services are those of IPVS, one destination a line, and how they differ from what is wanted; Dump tells of the table in front.
func (m *Mode) Services() (objects, missing, foreign []string, err error) { return m.table.dump() }

// Cleanup removes the services of IPVS and the local routes that a mode left. Connections by them end. Kernel parameters
// stay. Nothing there is no error. The table in front is left to nftables.Cleanup.
func Cleanup() error {
	var errs []error
	r, err := openRoutes(nil)
	if err == nil {
		_, err = r.set(nil)
		errs = append(errs, err, r.close())
	} else {
		errs = append(errs, err)
	}
	c, err := Open()
	if err != nil {
		return errors.Join(errs...) // no IPVS, no services
	}
	return errors.Join(append(errs, cleanServices(c), c.Close())...)
}

func cleanServices(k Kernel) error {
	services, err := k.Services()
	if err != nil {
		return err
	}
	var errs []error
	for _, s := range services {
		if !nftables.IsListMark(s.Mark) {
			continue
		}
		if err := k.DeleteService(s.Key); err != nil && !errors.Is(err, unix.ESRCH) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// Leave is Cleanup where another mode carries new connections from now on: those of IPVS go on, and what has none is removed.
// It reports whether something is left; then it is to be called again, until all have ended.
func Leave() (left bool, err error) {
	c, err := Open()
	if err == nil {
		left, err = leaveServices(c)
		err = errors.Join(err, c.Close())
	} else {
		err = nil // no IPVS, no services
	}
	if left || err != nil {
		return left, err
	}
	r, err := openRoutes(nil)
	if err != nil {
		return false, err
	}
	_, err = r.set(nil)
	return false, errors.Join(err, r.close())
}

func leaveServices(k Kernel) (left bool, err error) {
	services, err := k.Services()
	if err != nil {
		return false, err
	}
	for _, s := range services {
		if !nftables.IsListMark(s.Mark) {
			continue
		}
		dests, err := k.Destinations(s.Key)
		if errors.Is(err, unix.ESRCH) {
			continue
		}
		if err != nil {
			return left, err
		}
		used := false
		for _, d := range dests {
			switch {
			case d.Active+d.Inactive == 0:
				err = k.DeleteDestination(s.Key, d.Addr)
			case d.Weight != 0:
				used, err = true, k.SetDestination(s.Key, Destination{Addr: d.Addr})
			default:
				used = true
			}
			if err != nil && !errors.Is(err, unix.ENOENT) {
				return left, err
			}
		}
		if used {
			left = true
		} else if err := k.DeleteService(s.Key); err != nil && !errors.Is(err, unix.ESRCH) {
			return left, err
		}
	}
	return left, nil
}

// Status of the mode now.
func (m *Mode) Status() Status {
	t := m.table
	t.mu.Lock()
	defer t.mu.Unlock()
	s := Status{Scheduler: t.scheduler, Services: len(t.want), Draining: len(t.draining), Repaired: t.repairs, Failures: t.failures, WithoutPlan: WithoutPlan(t.scheduler)}
	for _, w := range t.want {
		s.Destinations += len(w.dests)
	}
	return s
}
