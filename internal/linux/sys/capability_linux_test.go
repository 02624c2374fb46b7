// SPDX-License-Identifier: Apache-2.0

package sys

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// Every thread of a process loses its capabilities, including threads that start later. A child
// process does it, because it cannot be undone.
func TestDropCapabilities(t *testing.T) {
	const child, unsupported = "LIBRA_SYS_DROP", "unsupported"
	if os.Getenv(child) != "" {
		for range 4 { // threads
			go func() {
				runtime.LockOSThread()
				select {}
			}()
		}
		runtime.Gosched()
		switch err := DropCapabilities(); {
		case errors.Is(err, errors.ErrUnsupported):
			fmt.Println(unsupported)
			return
		case err != nil:
			t.Fatal(err)
		}
		threads, err := filepath.Glob("/proc/self/task/*/status")
		if err != nil || len(threads) < 2 {
			t.Fatalf("threads %v, %v", threads, err)
		}
		for _, file := range threads {
			status, err := os.ReadFile(file)
			if err != nil {
				continue // the thread has ended
			}
			for _, set := range []string{"CapInh", "CapPrm", "CapEff"} {
				if !strings.Contains(string(status), set+":\t0000000000000000\n") {
					t.Errorf("%s has capabilities:\n%s", file, status)
				}
			}
		}
		if _, err := NewNamespace(); !errors.Is(err, os.ErrPermission) {
			t.Errorf("what needs a capability: %v", err)
		}
		return
	}
	if os.Geteuid() != 0 {
		t.Skip("there are no capabilities to drop")
	}
	run := func(command ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), command[0], command[1:]...)
		cmd.Env = append(os.Environ(), child+"=1", "CGO_ENABLED=0")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return string(out)
	}
	const only = "-test.run=^TestDropCapabilities$"
	if strings.Contains(run(os.Args[0], only), unsupported) { // this test is built with cgo
		program := filepath.Join(t.TempDir(), "sys.test")
		run("go", "test", "-c", "-o", program, ".")
		if strings.Contains(run(program, only), unsupported) {
			t.Error("not possible without cgo either")
		}
	}
}
