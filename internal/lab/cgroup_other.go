//go:build !linux

package lab

import (
	"context"
	"os/exec"

	"github.com/proxima-mesh/proxima/internal/kernel/netns"
)

func (Spec) cgroupOf(*netns.NS) (string, error) { return "", nil }

func (Spec) join(*exec.Cmd, *netns.NS) (leave func(), err error) { return func() {}, nil }

func (Spec) joinCgroup(*netns.NS) error { return nil }

func clearLayer(context.Context, *netns.NS) error { return nil }
