// SPDX-License-Identifier: Apache-2.0

package main

import (
	"syscall"
	"testing"
)

// An interrupted training of a linear model cleans up after itself.
func TestGLMLeavesNothingBehind(t *testing.T) {
	needRoot(t)
	temporary := t.TempDir()
	before := footprint(t, temporary)
	cmd, stderr := trainCluster(t, []string{"TMPDIR=" + temporary}, "glm", "-v", "--workers", "2", "--rows", "20000", "--epochs", "100000")
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // its exit code is what counts
	if code := cmd.ProcessState.ExitCode(); code != exitInterrupted {
		t.Errorf("exit code %d: %s", code, &stderr.text)
	}
	awaitFootprint(t, temporary, before)
}
