//go:build !unix

package proc

import (
	"os"
	"os/exec"
)

func ownGroup(*exec.Cmd) {}

// terminate kills: there is no portable way to ask a process to end here.
func terminate(p *os.Process) { kill(p) }

func kill(p *os.Process) { _ = p.Kill() }

func endedBy(*os.ProcessState) string { return "" }

// endedByTerminate is true for every end after a request to stop, because the
// status of a killed process cannot be told from a failure's.
func endedByTerminate(*os.ProcessState) bool { return true }
