// Command kubectl is the real kubectl, built from k8s.io/kubectl at the version
// this module pins, so that the tests need none on the PATH and always talk to
// the same one.
package main

import (
	"k8s.io/component-base/cli"
	"k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/util"
)

func main() {
	if err := cli.RunNoErrOutput(cmd.NewDefaultKubectlCommand()); err != nil {
		util.CheckErr(err)
	}
}
