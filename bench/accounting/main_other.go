//go:build !linux

package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "bench/accounting: needs Linux's network namespaces")
	os.Exit(1)
}
