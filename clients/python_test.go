// SPDX-License-Identifier: Apache-2.0

//go:build linux

package clients_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
)

// python returns a command that runs Python with NumPy, the package and the C library.
func python(t testing.TB, b *bed, args ...string) *exec.Cmd {
	t.Helper()
	library := filepath.Join(build(t, plain), "libra.so.1")
	name := withNumPy()
	if name == "" {
		leaveOut(t, "no python3 has NumPy (Debian: python3-numpy): the Python package is not tested")
	}
	cmd := command(t, name, args...)
	cmd.Env = append(os.Environ(), "LIBRA_LIBRARY="+library, "LIBRA_AGENT="+b.socket, "PYTHONPATH=python", "PYTHONDONTWRITEBYTECODE=1",
		"PYTHONWARNINGS=error")
	return cmd
}

var (
	withNumPy = sync.OnceValue(func() string { return pythonThatRuns("import numpy") })
	withTorch = sync.OnceValue(func() string {
		return pythonThatRuns("import numpy, torch.distributed as d; assert d.is_gloo_available()")
	})
)

// interpreter is the variable with which scripts/torch.sh says which Python to test.
const interpreter = "LIBRA_PYTHON"

// pythonThatRuns returns the first Python that runs a program, or nothing. Debian's packages belong
// to Debian's Python, which may not be first on the PATH.
func pythonThatRuns(program string) string {
	ctx, cancel := context.WithTimeout(context.Background(), torchLimit)
	defer cancel()
	pythons := []string{"python3", "/usr/bin/python3"}
	if given := os.Getenv(interpreter); given != "" {
		pythons = []string{given}
	}
	for _, name := range pythons {
		if path, err := exec.LookPath(name); err == nil && exec.CommandContext(ctx, path, "-c", program).Run() == nil {
			return path
		}
	}
	return ""
}

// TestPython runs python/test/real.py with an agent.
func TestPython(t *testing.T) {
	t.Parallel()
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

// TestPythonBesideStoppedAgent runs python/test/stopped.py with an agent that it stops, and
// continues.
func TestPythonBesideStoppedAgent(t *testing.T) {
	b, agent := apart(t)
	run(t, python(t, b, "python/test/stopped.py"))
	_ = agent.Process.Kill()
	_ = agent.Wait()
}

// TestPythonSums pushes in mode fetchadd, and looks at the sums of hot rows, and at the places of
// cold ones.
func TestPythonSums(t *testing.T) {
	t.Parallel()
	run(t, python(t, fetchAdd(t), "-c", `
import numpy as np, libra
with libra.Session("clicks") as session:
    assert session.info.mode == "fetchadd"
    keys, ones = [5, 9, 6], np.ones((3, 2), np.float32)
    np.full((3, 2), 7, np.float32)  # leaves the memory that the sums may get
    sums = session.push_sums(keys, ones)
    assert sums.tolist() == [[1, 1], [0, 0], [1, 1]], sums
    sums[:] = 7
    assert session.push_sums(keys, ones, sums) is sums
    assert sums.tolist() == [[2, 2], [7, 7], [2, 2]], sums
    with session.prepare(keys) as batch:
        session.push_sums(batch, ones, sums)
    assert sums.tolist() == [[3, 3], [7, 7], [3, 3]], sums
`))
}

// TestPythonMissingHost has one of two hosts come to the end of a step. It is told who is missing.
func TestPythonMissingHost(t *testing.T) {
	t.Parallel()
	cmd := python(t, &bed{}, "-c", `
import os, libra
if os.environ["RANK"] == "0":
    with libra.Session(os.environ["LIBRA_JOB"], parties=1) as session:
        try:
            session.reduce([3], [[1]], timeout=0.2)
        except TimeoutError as e:
            print(e)
        session.abandon()
`)
	libra, err := buildLibra()
	if err != nil {
		t.Fatal(err)
	}
	all := command(t, libra, append(strings.Fields("run --backend udp --sync --optimizer none --hosts 2 --workers 2 --"), cmd.Args...)...)
	all.Env = slices.DeleteFunc(cmd.Env, func(v string) bool { return strings.HasPrefix(v, "LIBRA_AGENT=") })
	const want = "the step has not ended after 0.2 s: all 1 parties of this host have come to its end, other hosts have not: is a process or an agent missing there?"
	if out := run(t, all); !strings.Contains(out, want) {
		t.Errorf("it is told %s", out)
	}
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
		cmd := within(t, torchLimit, "bash", "-euc", script) // the first script builds the program
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
