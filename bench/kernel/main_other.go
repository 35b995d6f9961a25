//go:build !linux

package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "bench/kernel: needs Linux's network namespaces")
	os.Exit(1)
}
