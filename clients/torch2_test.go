// SPDX-License-Identifier: Apache-2.0

//go:build linux

package clients_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// torchVersion returns the version of PyTorch, as in 2.6.0+debian.
func torchVersion(t *testing.T) string {
	t.Helper()
	torchPython(t)
	version, err := askTorchVersion()
	if err != nil {
		t.Fatal(err)
	}
	return version
}

// askTorchVersion loads PyTorch, which takes a second, once.
var askTorchVersion = sync.OnceValues(func() (string, error) {
	out, err := exec.Command(withTorch(), "-c", "import torch; print(torch.__version__)").Output()
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	return lines[len(lines)-1], err // UCX prints before it where /proc is not mounted
})

// TestTorch2 runs the tests of what PyTorch 2 builds upon groups.
func TestTorch2(t *testing.T) {
	t.Parallel()
	if version := torchVersion(t); strings.HasPrefix(version, "1.") {
		t.Logf("PyTorch %s has none of it: scripts/torch.sh tests later ones", version)
		return
	}
	run(t, torch(t, strings.Fields("--sync --optimizer none --hosts 2 --workers 4 --dim 2"), "python/test/torch2.py"))
}

// TestTorchCollectives calls every public collective of torch.distributed beside gloo, with two
// ranks, and in scripts/torch.sh with four, too.
func TestTorchCollectives(t *testing.T) {
	t.Parallel()
	ranks := []string{"2"}
	if os.Getenv(interpreter) != "" {
		ranks = append(ranks, "4")
	}
	for _, n := range ranks {
		out := run(t, torch(t, []string{"--sync", "--optimizer", "none", "--workers", n}, "python/test/torch_collectives.py"))
		t.Logf("PyTorch %s, %s ranks:\n%s", torchVersion(t), n, out)
		called := map[string]string{}
		for _, m := range regexp.MustCompile(`rank 0 \| (\w+): (?:(\d+) calls as gloo(?:, (\d+) of them refused)?|refused by PyTorch)`).FindAllStringSubmatch(out, -1) {
			switch {
			case m[2] == "":
				called[m[1]] = "PyTorch refuses"
			case m[3] == "":
				called[m[1]] = m[2]
			default:
				called[m[1]] = m[2] + ", " + m[3] + " refused"
			}
		}
		listed := listedCollectives(t, torchVersion(t))
		if listed == nil {
			t.Logf("docs/python.md has no column for this version")
		} else if diff := cmp.Diff(listed, called); diff != "" {
			t.Errorf("docs/python.md has others, %s ranks (-page +calls):\n%s", n, diff)
		}
	}
}

// listedCollectives returns the column of the table in docs/python.md that is of a version, nil if
// there is none.
func listedCollectives(t *testing.T, version string) map[string]string {
	t.Helper()
	page, err := os.ReadFile("../docs/python.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, found := strings.Cut(string(page), "\n| collective | ")
	if !found {
		t.Fatal("docs/python.md has no table of collectives")
	}
	table, _, _ = strings.Cut(table, "\n\n")
	rows := strings.Split(table, "\n")
	column := slices.IndexFunc(strings.Split(rows[0], " | "), func(v string) bool {
		return strings.HasPrefix(version, strings.TrimSuffix(v, " |")+".")
	})
	if column < 0 {
		return nil
	}
	listed := map[string]string{}
	for _, row := range rows[2:] {
		cells := strings.Split(strings.Trim(row, "| "), " | ")
		if cell := cells[column+1]; cell != "–" {
			listed[strings.Trim(cells[0], "`")] = cell
		}
	}
	return listed
}

// torchrun is torchrun, which up to 2.14 at least opens its own store with libuv whatever USE_LIBUV
// says, and so does not start where Debian's PyTorch has none.
const torchrun = `
import functools, os
import torch.distributed as dist
if os.environ.get("USE_LIBUV") == "0":
    dist.TCPStore = functools.partial(dist.TCPStore, use_libuv=False)
from torch.distributed.run import main
main()
`

// TestTorchRestart has a rank killed in an all-reduce. The other is told, and torchrun starts both
// anew, which add again.
func TestTorchRestart(t *testing.T) {
	t.Parallel()
	const program = `
import os, signal
import torch, torch.distributed as dist
import libra, libra.torch

dist.init_process_group("libra")
for step in range(3):
    tensor = torch.sparse_coo_tensor([[3]], [[1.0, 2.0]], (8, 2))
    if step == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        dist.all_reduce(tensor)
    except libra.PartyGone as e:
        print("told", e, flush=True)
        raise
    assert tensor.to_dense()[3].tolist() == [2, 4], tensor
dist.destroy_process_group()
# In one piece: torchrun passes on what it finds of a line.
print(f"added in start {os.environ['TORCHELASTIC_RESTART_COUNT']}\n", end="", flush=True)
`
	file := filepath.Join(openDir(t), "program.py")
	if err := os.WriteFile(file, []byte(program), 0o644); err != nil {
		t.Fatal(err)
	}
	options := "--standalone --nproc_per_node 2 --max_restarts 1 --monitor_interval 0.1 -r 1 -t 1 "
	if !strings.HasPrefix(torchVersion(t), "1.") { // which does not know it
		options += "--local_addr 127.0.0.1 "
	}
	cmd := torch(t, strings.Fields("--sync --optimizer none --dim 2"), append([]string{"-c", torchrun}, strings.Fields(options+file)...)...)
	cmd.Env = append(cmd.Env, "OMP_NUM_THREADS=1", "LOGLEVEL=ERROR",
		"TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1") // ranks would open torchrun's with libuv
	out, err := cmd.CombinedOutput()
	if n := strings.Count(string(out), "added in start 1"); err != nil || n != 2 {
		t.Errorf("%v, %d ranks have added after the restart\n%s", err, n, out)
	}
}

// TestTorchRankEnds has a rank end, killed or by itself, while the others want sums: on its host
// and on another they are told which one it is, and all can be started anew.
func TestTorchRankEnds(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"killed", "leaves"} {
		dir := openDir(t)
		if err := os.Chmod(dir, 0o777); err != nil {
			t.Fatal(err)
		}
		cmd := torch(t, strings.Fields("--sync --optimizer none --hosts 2 --workers 4 --dim 2"), "python/test/torch_ends.py", dir, how)
		out := run(t, cmd)
		if n := len(regexp.MustCompile(`(?m)^rank [012] \| told: rank (2 and rank )?3 ha(s|ve) ended: `).FindAllString(out, -1)); n != 3 {
			t.Errorf("one is %s, and %d of 3 ranks are told\n%s", how, n, out)
		}
		if n := strings.Count(out, "| added\n"); n != 4 {
			t.Errorf("one is %s, and %d of 4 ranks have added when they were started anew\n%s", how, n, out)
		}
	}
}

// TestPythonWithOtherTorch imports libra.torch beside PyTorches that it cannot use, and beside
// none.
func TestPythonWithOtherTorch(t *testing.T) {
	t.Parallel()
	const (
		remedy = "libra.torch needs PyTorch 1.13, or 2.6 or later, with gloo (Debian: python3-torch)"
		all    = "def is_available(): return True\ndef is_gloo_available(): return True\n"
		gloo   = "def is_available(): return True\ndef is_gloo_available(): return False\n"
		nobody = "def is_available(): return False\n"
		lacks  = "raise ModuleNotFoundError('the reason', name='numpy')\n"
	)
	for _, test := range []struct{ version, distributed, want string }{
		{"1.12.1", all, "ImportError: PyTorch 1.12.1 is too old: " + remedy},
		{"1.12rc1", "", "ImportError: PyTorch 1.12rc1 is too old: " + remedy},
		{"1.9.0", "", "ImportError: PyTorch 1.9.0 is too old: " + remedy},
		{"2.0.1", all, "ImportError: PyTorch 2.0.1 is too old: " + remedy},
		{"2.6.0", nobody, "ImportError: PyTorch 2.6.0 was built without torch.distributed: " + remedy},
		{"2.14.1+debian", "", "ImportError: PyTorch 2.14.1+debian was built without torch.distributed: " + remedy},
		{"2.7.0", gloo, "ImportError: PyTorch 2.7.0 was built without gloo: " + remedy},
		{"2.7.0", lacks, "ModuleNotFoundError: the reason"}, // not ours to explain
		{"", "", "ImportError: there is no PyTorch: " + remedy},
	} {
		dir := openDir(t)
		files := map[string]string{"__init__.py": "__version__ = '" + test.version + "'\n", "distributed.py": test.distributed}
		if test.version == "" {
			files["__init__.py"] = "raise ModuleNotFoundError('No module named torch', name='torch')\n" // as if there were no such folder
		}
		for name, text := range files {
			if text == "" {
				continue
			}
			path := filepath.Join(dir, "torch", name)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		cmd := python(t, &bed{}, "-c", "import libra.torch")
		cmd.Env = append(cmd.Env, "PYTHONPATH="+dir+":python")
		if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), test.want) {
			t.Errorf("beside PyTorch %s it ends with %v\n%s", test.version, err, out)
		}
	}
}
