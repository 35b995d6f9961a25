package ipvs

import (
	"cmp"
	"net/netip"
	"slices"
	"sync"
	"syscall"
)

// Fake is IPVS in memory, with the kernel's errors. The zero value is empty, and has all schedulers.
type Fake struct {
	mu       sync.Mutex
	services map[Key]*fakeService
	// Lacks are the schedulers whose module is missing.
	Lacks []string
	// Fail, if set, is asked before each change, and its error returned.
	Fail func(op string) error
	// Changes counts what was written.
	Changes  int
	Timeouts Timeouts
}

type fakeService struct {
	scheduler string
	dests     map[netip.AddrPort]Destination
}

var _ Kernel = (*Fake)(nil)

// Close implements Kernel; what there is stays.
func (f *Fake) Close() error { return nil }

// Services implements Kernel.
func (f *Fake) Services() ([]Service, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []Service
	for k, s := range f.services {
		out = append(out, Service{k, s.scheduler})
	}
	slices.SortFunc(out, func(a, b Service) int { return cmp.Or(cmp.Compare(a.Family, b.Family), cmp.Compare(a.Mark, b.Mark)) })
	return out, nil
}

// Destinations implements Kernel.
func (f *Fake) Destinations(k Key) ([]Destination, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.services[k]
	if s == nil {
		return nil, syscall.ESRCH
	}
	var out []Destination
	for _, d := range s.dests {
		out = append(out, d)
	}
	slices.SortFunc(out, func(a, b Destination) int { return a.Addr.Compare(b.Addr) })
	return out, nil
}

// change runs f as a change of the kernel's state.
func (f *Fake) change(op string, do func() error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.Fail != nil {
		if err := f.Fail(op); err != nil {
			return err
		}
	}
	if err := do(); err != nil {
		return err
	}
	f.Changes++
	return nil
}

func (f *Fake) scheduler(name string) error {
	if !slices.Contains(Schedulers(), name) || slices.Contains(f.Lacks, name) {
		return syscall.ENOENT
	}
	return nil
}

// AddService implements Kernel.
func (f *Fake) AddService(s Service) error {
	return f.change("add service", func() error {
		if f.services[s.Key] != nil {
			return syscall.EEXIST
		}
		if err := f.scheduler(s.Scheduler); err != nil {
			return err
		}
		if f.services == nil {
			f.services = map[Key]*fakeService{}
		}
		f.services[s.Key] = &fakeService{s.Scheduler, map[netip.AddrPort]Destination{}}
		return nil
	})
}

// with runs do with a service that is there.
func (f *Fake) with(op string, k Key, do func(*fakeService) error) error {
	return f.change(op, func() error {
		if f.services[k] == nil {
			return syscall.ESRCH
		}
		return do(f.services[k])
	})
}

// SetService implements Kernel.
func (f *Fake) SetService(s Service) error {
	return f.with("set service", s.Key, func(have *fakeService) error {
		if err := f.scheduler(s.Scheduler); err != nil {
			return err
		}
		have.scheduler = s.Scheduler
		return nil
	})
}

// DeleteService implements Kernel.
func (f *Fake) DeleteService(k Key) error {
	return f.with("delete service", k, func(*fakeService) error {
		delete(f.services, k)
		return nil
	})
}

// AddDestination implements Kernel.
func (f *Fake) AddDestination(k Key, d Destination) error {
	return f.with("add destination", k, func(s *fakeService) error {
		if _, there := s.dests[d.Addr]; there {
			return syscall.EEXIST
		}
		s.dests[d.Addr] = d
		return nil
	})
}

// SetDestination implements Kernel.
func (f *Fake) SetDestination(k Key, d Destination) error {
	return f.with("set destination", k, func(s *fakeService) error {
		have, there := s.dests[d.Addr]
		if !there {
			return syscall.ENOENT
		}
		have.Weight = d.Weight
		s.dests[d.Addr] = have
		return nil
	})
}

// DeleteDestination implements Kernel.
func (f *Fake) DeleteDestination(k Key, a netip.AddrPort) error {
	return f.with("delete destination", k, func(s *fakeService) error {
		if _, there := s.dests[a]; !there {
			return syscall.ENOENT
		}
		delete(s.dests, a)
		return nil
	})
}

// SetTimeouts implements Kernel.
func (f *Fake) SetTimeouts(t Timeouts) error {
	return f.change("set timeouts", func() error {
		f.Timeouts = t
		return nil
	})
}

// Connect notes connections at a destination, as the kernel counts them.
func (f *Fake) Connect(k Key, a netip.AddrPort, active, inactive uint32) {
	f.mu.Lock()
	defer f.mu.Unlock()
	d := f.services[k].dests[a]
	d.Active, d.Inactive = active, inactive
	f.services[k].dests[a] = d
}
