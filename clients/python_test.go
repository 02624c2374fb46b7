//go:build linux

package clients_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// python returns the command that runs Python, one that has NumPy, with the package and the C library.
func python(t testing.TB, b *bed, args ...string) *exec.Cmd {
	t.Helper()
	library := filepath.Join(build(t, plain), "libra.so.1")
	// Debian's NumPy belongs to Debian's Python, which may not be the first on the PATH.
	for _, name := range []string{"python3", "/usr/bin/python3"} {
		if command(t, name, "-c", "import numpy").Run() != nil {
			continue
		}
		cmd := command(t, name, args...)
		cmd.Env = append(os.Environ(), "LIBRA_LIBRARY="+library, "LIBRA_AGENT="+b.socket, "PYTHONPATH=python", "PYTHONDONTWRITEBYTECODE=1",
			"PYTHONWARNINGS=error")
		return cmd
	}
	leaveOut(t, "no python3 has NumPy (Debian: python3-numpy): the Python package is not tested")
	return nil
}

// TestPython runs python/test/real.py with an agent.
func TestPython(t *testing.T) {
	b := newBed(t, jobName, config(dim, 1))
	if out, err := python(t, b, "python/test/real.py").CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	b.idle(t)
}

// TestPythonOutlivesAgent kills an agent that a barrier and pushes wait for.
func TestPythonOutlivesAgent(t *testing.T) {
	outlive(t, func(b *bed) *exec.Cmd {
		return python(t, b, "-c", `
import threading, libra

def barrier():
    try:
        session.barrier()  # the other party never comes
    except libra.AgentDied as e:
        told.append(str(e))

told = []
session = libra.Session("clicks", parties=2)
thread = threading.Thread(target=barrier)
thread.start()
print("under way", flush=True)
try:
    while True:
        session.push([1, 70], [[0, 0], [0, 0]])
except ConnectionError as e:
    told.append(str(e))
thread.join()
session.abandon()
assert len(told) == 2 and all("has died" in text for text in told), told
print("told")
`)
	})
}

// TestPythonPage runs the first program of docs/python.md.
func TestPythonPage(t *testing.T) {
	page, err := os.ReadFile("../docs/python.md")
	if err != nil {
		t.Fatal(err)
	}
	program := regexp.MustCompile("(?s)\n```python\n(.*?)```\n").FindSubmatch(page)
	if program == nil {
		t.Fatal("docs/python.md has no program")
	}
	before, _, _ := strings.Cut(string(page), string(program[0]))
	if lines := strings.Count(before+string(program[0]), "\n"); lines > 60 {
		t.Errorf("the program ends in line %d of docs/python.md, which is not on the first screen", lines)
	}
	b := newBed(t, "clicks", config(1, 0.5))
	out, err := python(t, b, "-c", string(program[1])).CombinedOutput()
	if want := regexp.MustCompile("(?s)```\n(accuracy .*?)```").FindSubmatch(page); err != nil || want == nil || string(out) != string(want[1]) {
		t.Errorf("%v: the program prints\n%s\ndocs/python.md has\n%s", err, out, want)
	}
}
