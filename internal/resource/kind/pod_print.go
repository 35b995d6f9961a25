package kind

import (
	"fmt"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func podColumns() []metav1.TableColumnDefinition {
	spec, status := corev1.PodSpec{}.SwaggerDoc(), corev1.PodStatus{}.SwaggerDoc()
	return []metav1.TableColumnDefinition{
		nameColumn(),
		column("Ready", "The aggregate readiness state of this pod for accepting traffic."),
		column("Status", "The aggregate status of the containers in this pod."),
		column("Restarts",
			"The number of times the containers in this pod have been restarted and when the last container in this pod has restarted."),
		ageColumn(),
		wide("IP", status["podIP"]),
		wide("Node", spec["nodeName"]),
		wide("Nominated Node", status["nominatedNodeName"]),
		wide("Readiness Gates", spec["readinessGates"]),
	}
}

func podCells(p *corev1.Pod) []any {
	s := summarise(p)
	ip := none
	if len(p.Status.PodIPs) > 0 {
		ip = orElse(p.Status.PodIPs[0].IP, none)
	}
	restarts := strconv.Itoa(s.restarts)
	if s.restarts != 0 && !s.restarted.IsZero() {
		restarts = fmt.Sprintf("%d (%s ago)", s.restarts, since(s.restarted))
	}
	return []any{
		p.Name, fmt.Sprintf("%d/%d", s.ready, s.containers), s.state, restarts, age(p),
		ip, orElse(p.Spec.NodeName, none), orElse(p.Status.NominatedNodeName, none), readinessGates(p),
	}
}

// podSummary is kubectl's row for a Pod.
type podSummary struct {
	ready, containers int
	restarts          int
	restarted         time.Time
	state             string
}

func (s *podSummary) addRestarts(c *corev1.ContainerStatus) {
	s.restarts += int(c.RestartCount)
	if t := c.LastTerminationState.Terminated; t != nil && s.restarted.Before(t.FinishedAt.Time) {
		s.restarted = t.FinishedAt.Time
	}
}

func summarise(p *corev1.Pod) podSummary {
	s := podSummary{containers: len(p.Spec.Containers), state: orElse(p.Status.Reason, string(p.Status.Phase))}
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Reason == corev1.PodReasonSchedulingGated {
			s.state = corev1.PodReasonSchedulingGated
		}
	}
	sidecars := set[string]{}
	for _, c := range p.Spec.InitContainers {
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			sidecars.add(c.Name)
			s.containers++
		}
	}
	if done := s.initContainers(p, sidecars); done || podCondition(p, corev1.PodInitialized) {
		s.mainContainers(p, sidecars)
	}
	if p.DeletionTimestamp != nil {
		switch {
		case p.Status.Reason == "NodeLost": // set by the node lifecycle controller
			s.state = "Unknown"
		case p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed:
			s.state = "Terminating"
		}
	}
	return s
}

// initContainers reports how far initialisation has come; true: to its end.
func (s *podSummary) initContainers(p *corev1.Pod, sidecars set[string]) bool {
	for i := range p.Status.InitContainerStatuses {
		c := &p.Status.InitContainerStatuses[i]
		s.addRestarts(c)
		_, sidecar := sidecars[c.Name]
		t, w := c.State.Terminated, c.State.Waiting
		switch {
		case t != nil && t.ExitCode == 0:
			continue
		case sidecar && c.Started != nil && *c.Started:
			if c.Ready {
				s.ready++
			}
			continue
		case t != nil:
			s.state = "Init:" + orElse(t.Reason, exitOf(t))
		case w != nil && w.Reason != "" && w.Reason != "PodInitializing":
			s.state = "Init:" + w.Reason
		default:
			s.state = fmt.Sprintf("Init:%d/%d", i, len(p.Spec.InitContainers))
		}
		return false
	}
	return true
}

func (s *podSummary) mainContainers(p *corev1.Pod, sidecars set[string]) {
	// From here on init containers count only if they run next to the others.
	s.restarts, s.restarted = 0, time.Time{}
	for i := range p.Status.InitContainerStatuses {
		c := &p.Status.InitContainerStatuses[i]
		if _, ok := sidecars[c.Name]; ok {
			s.addRestarts(c)
		}
	}
	running := false
	for i := len(p.Status.ContainerStatuses) - 1; i >= 0; i-- {
		c := &p.Status.ContainerStatuses[i]
		s.addRestarts(c)
		t, w := c.State.Terminated, c.State.Waiting
		switch {
		case w != nil && w.Reason != "":
			s.state = w.Reason
		case t != nil:
			s.state = orElse(t.Reason, exitOf(t))
		case c.Ready && c.State.Running != nil:
			running = true
			s.ready++
		}
	}
	if s.state == "Completed" && running {
		s.state = "NotReady"
		if podCondition(p, corev1.PodReady) {
			s.state = "Running"
		}
	}
}

func exitOf(t *corev1.ContainerStateTerminated) string {
	if t.Signal != 0 {
		return fmt.Sprintf("Signal:%d", t.Signal)
	}
	return fmt.Sprintf("ExitCode:%d", t.ExitCode)
}

func podCondition(p *corev1.Pod, kind corev1.PodConditionType) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == kind {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

func readinessGates(p *corev1.Pod) string {
	if len(p.Spec.ReadinessGates) == 0 {
		return none
	}
	open := 0
	for _, g := range p.Spec.ReadinessGates {
		if podCondition(p, g.ConditionType) {
			open++
		}
	}
	return fmt.Sprintf("%d/%d", open, len(p.Spec.ReadinessGates))
}
