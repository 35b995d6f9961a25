package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/windows"
	"golang.org/x/sys/windows/svc"
	"golang.org/x/sys/windows/svc/mgr"
)

// serviceName of the agent with Windows' service manager.
const serviceName = "proxima-node"

const (
	// maxServiceLog is the size (bytes) from which the log begins again at a start; the one before is kept.
	maxServiceLog = 16 << 20
	// serviceStop is how long a service may take to stop.
	serviceStop = 30 * time.Second
	// serviceFailures after which its count begins again.
	serviceFailures = 24 * time.Hour
)

// underServiceManager runs a role, as a service if the service manager started this process. Its log
// goes to a file then: a service has no standard error.
func underServiceManager(ctx context.Context, s *settings, run func(context.Context) error) error {
	service, err := svc.IsWindowsService()
	if err != nil || !service {
		return run(ctx)
	}
	log, err := openServiceLog(s.dataDir)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	s.io.Err, s.io.Out = log, log
	h := &serviceHandler{ctx: ctx, run: run}
	return errors.Join(svc.Run(serviceName, h), h.err)
}

func openServiceLog(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	path := filepath.Join(dir, "service.log")
	if info, err := os.Stat(path); err == nil && info.Size() > maxServiceLog {
		if err := os.Rename(path, path+".1"); err != nil {
			return nil, err
		}
	}
	return os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
}

// serviceHandler implements svc.Handler.
type serviceHandler struct {
	ctx context.Context
	run func(context.Context) error
	err error
}

// Execute runs the role until the service manager stops it, or it fails.
func (h *serviceHandler) Execute(_ []string, requests <-chan svc.ChangeRequest, status chan<- svc.Status) (specific bool, code uint32) {
	ctx, stop := context.WithCancel(h.ctx)
	defer stop()
	done := make(chan error, 1)
	go func() { done <- h.run(ctx) }()
	running := svc.Status{State: svc.Running, Accepts: svc.AcceptStop | svc.AcceptShutdown}
	status <- running
	for {
		select {
		case h.err = <-done:
			if h.err != nil {
				return true, 1 // the service manager starts it again
			}
			return false, 0
		case r := <-requests:
			switch r.Cmd {
			case svc.Interrogate:
				status <- r.CurrentStatus
			case svc.Stop, svc.Shutdown:
				status <- svc.Status{State: svc.StopPending, WaitHint: uint32(serviceStop.Milliseconds())}
				stop()
			}
		}
	}
}

// installService of this program, with arguments, and start it.
func installService(s *settings, args []string) error {
	program, err := os.Executable()
	if err != nil {
		return err
	}
	m, err := mgr.Connect()
	if err != nil {
		return fmt.Errorf("service manager: %w (run this as an administrator)", err)
	}
	defer func() { _ = m.Disconnect() }()
	service, err := m.CreateService(serviceName, program, mgr.Config{
		DisplayName: "Proxima node agent", Description: "Carries the traffic of Services on this machine (proxima node).",
		StartType: mgr.StartAutomatic, DelayedAutoStart: true,
	}, args...)
	if errors.Is(err, windows.ERROR_SERVICE_EXISTS) {
		return errors.New("service " + serviceName + " is installed already: remove it first with \"proxima node service uninstall\"")
	}
	if err != nil {
		return fmt.Errorf("install service %s: %w", serviceName, err)
	}
	defer func() { _ = service.Close() }()
	again := mgr.RecoveryAction{Type: mgr.ServiceRestart, Delay: time.Second}
	if err := service.SetRecoveryActions([]mgr.RecoveryAction{again, again, {Type: mgr.ServiceRestart, Delay: serviceStop}}, uint32(serviceFailures.Seconds())); err != nil {
		return fmt.Errorf("service %s: recovery: %w", serviceName, err)
	}
	if err := service.SetRecoveryActionsOnNonCrashFailures(true); err != nil {
		return fmt.Errorf("service %s: recovery: %w", serviceName, err)
	}
	if err := service.Start(); err != nil {
		return fmt.Errorf("start service %s: %w", serviceName, err)
	}
	fmt.Fprintf(s.io.Out, "service %s is installed and starts; its log is %s\n", serviceName, filepath.Join(s.dataDir, "service.log"))
	return nil
}

// uninstallService stops the service and removes it. One that is not there is no error.
func uninstallService(s *settings) error {
	m, err := mgr.Connect()
	if err != nil {
		return fmt.Errorf("service manager: %w (run this as an administrator)", err)
	}
	defer func() { _ = m.Disconnect() }()
	service, err := m.OpenService(serviceName)
	if errors.Is(err, windows.ERROR_SERVICE_DOES_NOT_EXIST) {
		fmt.Fprintf(s.io.Out, "service %s is not installed\n", serviceName)
		return nil
	}
	if err != nil {
		return fmt.Errorf("open service %s: %w", serviceName, err)
	}
	defer func() { _ = service.Close() }()
	if _, err := service.Control(svc.Stop); err != nil && !errors.Is(err, windows.ERROR_SERVICE_NOT_ACTIVE) {
		return fmt.Errorf("stop service %s: %w", serviceName, err)
	}
	if err := service.Delete(); err != nil {
		return fmt.Errorf("remove service %s: %w", serviceName, err)
	}
	fmt.Fprintf(s.io.Out, "service %s stops, and is removed\n", serviceName)
	return nil
}
