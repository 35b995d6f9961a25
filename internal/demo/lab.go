package demo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/proxima-mesh/proxima/internal/kernel/netns"
	"github.com/proxima-mesh/proxima/internal/lab"
	"github.com/proxima-mesh/proxima/internal/problem"
)

// inKernel decides between the two demos.
func inKernel(mode string) (bool, error) {
	if mode == "userspace" {
		return false, nil
	}
	err := netns.Available()
	if err == nil || mode == "auto" || mode == "" {
		return err == nil, nil
	}
	return false, &problem.Error{
		Code: problem.PrivilegeMissing,
		Err:  fmt.Errorf("--mode %s: %w", mode, err),
		Hint: "run it as root, or use --mode userspace",
	}
}

// labDemo is the demo in a lab. The client is that of zone-a.
type labDemo struct {
	lab    *lab.Lab
	name   string
	nodes  []string
	exe    string
	screen screen
}

const (
	client = "zone-a"
	// dark is the zone that loses power.
	dark = "zone-b"
)

// runLab plays the demo in a lab of its own. The lab is gone when it returns;
// should this process be killed, the next demo or lab removes it.
func runLab(ctx context.Context, cfg Config) (err error) {
	// A terminal that is closed must not leave a lab, nor a second Ctrl-C while it is
	// taken down: signals are held until it is.
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	d := &labDemo{
		name: fmt.Sprintf("d%d", os.Getpid()%10_000_000), exe: cfg.Executable,
		screen: screen{out: cfg.Out, color: cfg.Color},
	}
	d.screen.title("Proxima: three zones of two nodes on this machine, each with a control plane and an ingress of its own")
	d.screen.done("%-23s %s", "lab", d.name)
	d.lab, err = lab.Start(ctx, lab.Spec{
		Name: d.name, Zones: len(zones), Nodes: 2, Mode: cfg.Mode, Global: true, Executable: cfg.Executable, Temporary: true,
		Progress: func(line string) {
			what, more, _ := strings.Cut(line, ": ")
			d.screen.done("%-23s %s", what, more)
		},
	})
	if err == nil {
		defer func() { err = errors.Join(err, d.lab.Down(context.WithoutCancel(ctx))) }()
		err = d.play(ctx, cfg.Once)
	}
	if err != nil && ctx.Err() != nil && !cfg.Once {
		return nil // Ctrl-C is the normal end; errors of Down are added by the defer
	}
	return err
}

func (d *labDemo) play(ctx context.Context, once bool) error {
	mode := ""
	for _, z := range d.lab.Status(ctx).Zones {
		for _, n := range z.Nodes {
			d.nodes, mode = append(d.nodes, n.Workload), n.Mode
		}
	}
	d.screen.done("%-23s %s", "mode", carries(mode))
	pids, err := d.victims(ctx)
	if err != nil {
		return err
	}
	d.screen.title("%d requests from a client in %s to http://%s", requests, client, d.lab.VIPOf(client))
	if err := d.ask(ctx, nil); err != nil {
		return err
	}
	d.screen.line("All zones export the service; a zone's own endpoints serve it first.")

	d.screen.title("kill -9 of %s's backends (processes %s), then %d more", client, numbers(pids), requests)
	if err := d.killAll(ctx, pids); err != nil {
		return err
	}
	dead := map[string]bool{}
	for name := range pids {
		dead[name] = true
	}
	if err := d.moved(ctx, dead); err != nil {
		return err
	}
	d.screen.line("The traffic moved on, by mutual TLS to the ingresses of the other zones: after that no request failed.")

	d.screen.title("%s loses power, with its control plane, its ingress and its nodes, then %d more", dark, requests)
	if err := d.lab.PowerOff(ctx, dark); err != nil {
		return fmt.Errorf("switch %s off: %w", dark, err)
	}
	for _, name := range d.nodes {
		if strings.HasPrefix(name, "web-"+strings.TrimPrefix(dark, "zone-")+"-") {
			dead[name] = true
		}
	}
	if err := d.moved(ctx, dead); err != nil {
		return err
	}
	d.screen.line("The traffic moved on: after that no request failed.")
	d.whatNext(once)
	if once {
		return nil
	}
	<-ctx.Done()
	d.screen.line("")
	return nil
}

func carries(mode string) string {
	if mode == "userspace" {
		return "userspace: the agents carry traffic themselves, as no kernel mode works here"
	}
	return mode + ": the nodes' kernels carry traffic, their agents change tables"
}

// victims are the processes of all of zone-a's backends, by name. It sends requests
// until each has answered.
func (d *labDemo) victims(ctx context.Context) (map[string]int, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	pids := map[string]int{}
	for len(pids) < 2 {
		a, err := d.lab.Answer(ctx, client)
		if err != nil && ctx.Err() == nil {
			continue // the zone's agents have not all converged yet
		}
		if err != nil {
			return nil, fmt.Errorf("%d of 2 backends of %s answered: %w", len(pids), client, err)
		}
		if a.Zone == client {
			pids[a.Name] = a.PID
		}
	}
	return pids, nil
}

// killAll of some processes, by the names of their workloads.
func (d *labDemo) killAll(ctx context.Context, pids map[string]int) error {
	for name, pid := range pids {
		if err := kill(ctx, pid); err != nil {
			return fmt.Errorf("kill %s: %w", name, err)
		}
	}
	return nil
}

// moved shows where the traffic goes after a failure.
func (d *labDemo) moved(ctx context.Context, dead map[string]bool) error {
	if err := d.shift(ctx, dead); err != nil {
		return err
	}
	return d.ask(ctx, dead)
}

// shift keeps sending requests after a failure until others than the dead answer all of them.
func (d *labDemo) shift(ctx context.Context, dead map[string]bool) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	failed, refused := time.Now(), 0
	var over time.Duration // from the failure to the first answer since which none failed
	for well := 0; well < requests; {
		a, err := d.lab.Answer(ctx, client)
		switch {
		case ctx.Err() != nil:
			return fmt.Errorf("no backend took over in %s: %w", timeout, err)
		case err != nil || dead[a.Name]:
			well = 0
			refused++
			continue
		case well == 0:
			over = time.Since(failed)
		}
		well++
	}
	d.screen.line("  after %s other zones had taken over; %d requests failed until then", over.Round(time.Millisecond), refused)
	return nil
}

// ask sends the requests, one connection each, and shows who answered. None of
// the killed ones may answer.
func (d *labDemo) ask(ctx context.Context, dead map[string]bool) error {
	answers := map[string]int{}
	d.screen.begin()
	for range requests {
		a, err := d.lab.Answer(ctx, client)
		if err != nil {
			d.screen.end()
			return fmt.Errorf("request through %s: %w", d.lab.VIPOf(client), err)
		}
		answers[a.Name]++
		d.screen.answer(a.Name)
	}
	d.screen.end()
	for i, name := range d.nodes {
		d.screen.bar(name, zones[i*len(zones)/len(d.nodes)], answers[name])
		if dead[name] && answers[name] > 0 {
			return fmt.Errorf("%s is dead and answered", name)
		}
	}
	return nil
}

func numbers(pids map[string]int) string {
	var out []string
	for _, pid := range pids {
		out = append(out, fmt.Sprint(pid))
	}
	slices.Sort(out)
	return strings.Join(out, " and ")
}

func (d *labDemo) whatNext(once bool) {
	if once {
		d.screen.line("Without --once it stays, with commands to try in another terminal.")
		return
	}
	d.screen.title("Try it yourself, in another terminal, as root")
	d.screen.line("  ip netns exec pxlab-%s-client-a curl -s http://%s", d.name, d.lab.VIPOf(client))
	d.screen.line("  %s trace %s --data-dir %s", d.exe, d.lab.VIPOf(client), d.lab.DataDir("a-1"))
	d.screen.line("  %s lab status --lab %s                # also: heal zone-b, cut zone-a zone-c, kill global", d.exe, d.name)
	d.screen.line("  %s lab exec --lab %s a-1 -- proxima top services   # what goes where, as it changes", d.exe, d.name)
	d.screen.line("  %s lab console --lab %s zone-a        # the same in a browser, with the reasons", d.exe, d.name)
	d.screen.line("")
	d.screen.line("Ctrl-C ends the demo and removes everything.")
}
