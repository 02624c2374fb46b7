// SPDX-License-Identifier: Apache-2.0

package testbed

import (
	"fmt"
	"os/exec"
	"syscall"
)

// SimpleSwitch returns the command of a P4 switch without a program, bmv2's
// simple_switch_grpc, with its P4Runtime address. Interface i is port i+1. Start it in
// the namespace of the interfaces, as root.
func SimpleSwitch(path, target string, interfaces []string) *exec.Cmd {
	// The switch reads the state of its ports from sysfs, so it needs that of its namespace.
	args := []string{"-c", `mount -t sysfs sysfs /sys && exec "$0" "$@"`, path, "--no-p4", "--device-id", "0",
		"--log-level", "error"}
	for i, name := range interfaces {
		args = append(args, "-i", fmt.Sprintf("%d@%s", i+1, name))
	}
	cmd := exec.Command("sh", append(args, "--", "--grpc-server-addr", target, "--cpu-port", "510")...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	return cmd
}
