//go:build !linux

package iptables

import "errors"

var errSystem = errors.New("the iptables mode needs Linux")

func openSystem(Variant, func(func() error) error) (kernel, error) { return nil, errSystem }

func systemVariant() Variant { return NFT }

func hasFamily(family) bool { return false }
