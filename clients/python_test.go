// SPDX-License-Identifier: Apache-2.0

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

// python returns a command that runs Python with NumPy, the package and the C library.
func python(t testing.TB, b *bed, args ...string) *exec.Cmd {
	t.Helper()
	library := filepath.Join(build(t, plain), "libra.so.1")
	// Debian's NumPy belongs to Debian's Python, which may not be first on the PATH.
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

// TestPythonOutlivesAgent kills an agent while a barrier and pushes wait for it.
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

// TestPythonPage runs the commands of docs/python.md: those of its first screen, and of a cluster
// that is started by hand.
func TestPythonPage(t *testing.T) {
	page, err := os.ReadFile("../docs/python.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := map[string][]string{}
	numpy, _, _ := strings.Cut(string(page), "\n## PyTorch\n") // TestTorchPage has the rest
	for _, b := range regexp.MustCompile("(?ms)^```(\\w*)\n(.*?)^```$").FindAllStringSubmatch(numpy, -1) {
		blocks[b[1]] = append(blocks[b[1]], b[2])
	}
	if len(blocks["sh"]) != 2 || len(blocks["yaml"]) != 2 || len(blocks["python"]) == 0 || len(blocks[""]) == 0 {
		t.Fatalf("docs/python.md has other blocks than this test runs: %d", len(blocks))
	}
	before, _, _ := strings.Cut(string(page), blocks["sh"][0])
	if lines := strings.Count(before, "\n"); lines > 20 {
		t.Errorf("the first commands begin in line %d of docs/python.md, which is not on the first screen", lines)
	}
	example, err := os.ReadFile("python/examples/clicks.py")
	_, program, _ := strings.Cut(string(example), "\n") // after its licence
	if err != nil || program != blocks["python"][0] {
		t.Errorf("docs/python.md does not have python/examples/clicks.py as it is, %v", err)
	}
	want := strings.TrimSpace(blocks[""][0])

	root, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	bin := t.TempDir()
	if err := os.Symlink(python(t, &bed{}).Path, filepath.Join(bin, "python3")); err != nil {
		t.Fatal(err)
	}
	shell := func(dir, script string) string {
		cmd := command(t, "bash", "-euc", script)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "PATH="+bin+":"+filepath.Join(root, "bin")+":"+os.Getenv("PATH"))
		return run(t, cmd)
	}
	if out := shell(root, blocks["sh"][0]); !strings.Contains(out, want+"\n") || !strings.Contains(out, "SHA-256 of the weights") {
		t.Errorf("the first commands print\n%s\ndocs/python.md has\n%s", out, want)
	}
	dir := openDir(t) // the path of a socket must be short
	for i, name := range []string{"cluster.yaml", "agent.yaml"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(blocks["yaml"][i]), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "clicks.py"), example, 0o600); err != nil {
		t.Fatal(err)
	}
	exports := `export LIBRA_LIBRARY="` + root + `/clients/c/build/libra.so.1" PYTHONPATH="` + root + `/clients/python"`
	if out := shell(dir, exports+"\n"+blocks["sh"][1]+"\nkill $(jobs -p); wait\n"); !strings.Contains(out, want) {
		t.Errorf("by hand it prints\n%s", out)
	}
}
