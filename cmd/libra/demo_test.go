// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/libra-ina/libra/cluster/demo"
	"github.com/libra-ina/libra/cluster/node"
	"github.com/libra-ina/libra/internal/test/realdata"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/train/weights"
)

// needRoot skips a test that creates namespaces if that is not permitted.
func needRoot(t *testing.T) {
	t.Helper()
	if runtime.GOOS != "linux" || os.Geteuid() != 0 {
		t.Skip("the afxdp backend needs Linux and root")
	}
}

func frappe(t *testing.T) []string {
	t.Helper()
	return []string{
		"--data", realdata.Path(t, "frappe-train.libfm.gz"),
		"--test", realdata.Path(t, "frappe-test.libfm.gz"),
	}
}

// Synchronous training must give the weights of one process, bit for bit, whatever the network
// does, whether switch or server adds: invariant 1, end to end.
func TestSynchronousTrainingIsExact(t *testing.T) {
	t.Parallel()
	faults := []string{"--loss", "0.01", "--duplicate", "0.01", "--reorder", "0.01"}
	hashes := map[string]bool{}
	for name, args := range map[string][]string{
		"afxdp":              {"--backend", "afxdp"},
		"afxdp faults":       append([]string{"--backend", "afxdp"}, faults...),
		"afxdp lane-aligned": {"--backend", "afxdp", "--lane-aligned"},
		"udp":                {"--backend", "udp"},
		"udp faults":         append([]string{"--backend", "udp"}, faults...),

		"afxdp, three servers":          {"--backend", "afxdp", "--servers", "3"},
		"afxdp, three servers, faults":  append([]string{"--backend", "afxdp", "--servers", "3"}, faults...),
		"afxdp, three switches, faults": append([]string{"--backend", "afxdp", "--switches", "3"}, faults...),
		"afxdp, a tree, faults":         append([]string{"--backend", "afxdp", "--switches", "3", "--tree"}, faults...),
		"udp, a tree, faults":           append([]string{"--backend", "udp", "--switches", "3", "--tree"}, faults...),
		"udp, three switches, faults":   append([]string{"--backend", "udp", "--switches", "3"}, faults...),
		"udp, three switches, all hot":  {"--backend", "udp", "--switches", "3", "--hot-rate", "1", "--hot-rows", "6000"},
		"udp, three servers, faults":    append([]string{"--backend", "udp", "--servers", "3"}, faults...),
	} {
		t.Run(name, func(t *testing.T) {
			if strings.HasPrefix(name, "afxdp") {
				needRoot(t)
			}
			r := runDemo(t, append(append(frappe(t), "--sync", "--epochs", "1"), args...)...)
			if r.WeightsSHA256 != r.ReferenceSHA256 || len(r.WeightsSHA256) != 64 {
				t.Errorf("weights %s, reference %s", r.WeightsSHA256, r.ReferenceSHA256)
			}
			if allHot := strings.HasSuffix(name, "all hot"); allHot != (r.HotShare == 1) || allHot != (r.ColdBytes == 0) {
				t.Errorf("got %+v", r)
			}
			if r.HotShare < 0.5 || r.FramesSaved <= 0 || r.Backend != args[1] {
				t.Errorf("got %+v", r)
			}
			if strings.HasSuffix(name, "faults") && (r.FaultsDropped == 0 || r.FaultsDuplicated == 0 || r.FaultsReordered == 0 || r.Retransmissions == 0) {
				t.Errorf("no faults were injected: %+v", r)
			}
			hashes[r.WeightsSHA256] = true
		})
	}
	if len(hashes) > 1 {
		t.Errorf("the weights depend on the backend: %v", hashes)
	}
}

// So must training whose hot rows take several pages of ranks.
func TestSynchronousTrainingWithPagesIsExact(t *testing.T) {
	t.Parallel()
	const keys = 1500
	var log strings.Builder
	rng := rand.New(rand.NewPCG(7, 9))
	for range 2000 {
		fmt.Fprintf(&log, "%d", rng.IntN(2))
		for _, key := range rng.Perm(keys)[:20] {
			fmt.Fprintf(&log, " %d:1", key)
		}
		log.WriteString("\n")
	}
	data := writeFile(t, "rows.libfm", log.String())
	faults := []string{"--loss", "0.01", "--duplicate", "0.01", "--reorder", "0.01"}
	for name, args := range map[string][]string{
		"afxdp":                        {"--backend", "afxdp"},
		"afxdp lane-aligned, faults":   append([]string{"--backend", "afxdp", "--lane-aligned"}, faults...),
		"afxdp, three servers, faults": append([]string{"--backend", "afxdp", "--servers", "3"}, faults...),
		"udp, three servers, faults":   append([]string{"--backend", "udp", "--servers", "3"}, faults...),
	} {
		t.Run(name, func(t *testing.T) {
			if strings.HasPrefix(name, "afxdp") {
				needRoot(t)
			}
			r := runDemo(t, append(args, "--data", data, "--factors", "64", "--hot-rows", fmt.Sprint(keys), "--sync", "--epochs", "1", "--workers", "2")...)
			if r.WeightsSHA256 != r.ReferenceSHA256 || len(r.WeightsSHA256) != 64 {
				t.Errorf("weights %s, reference %s", r.WeightsSHA256, r.ReferenceSHA256)
			}
			if slots := r.HotRows * 65; slots <= packer.PageSlots || r.HotShare < 0.5 {
				t.Errorf("%d hot scalars, share %g: this is no job of several pages", slots, r.HotShare)
			}
		})
	}
}

func TestSynthetic(t *testing.T) {
	t.Parallel()
	for _, backend := range []string{"udp", "afxdp"} {
		t.Run(backend, func(t *testing.T) {
			if backend == "afxdp" {
				needRoot(t)
			}
			dir := filepath.Join(t.TempDir(), "made", "here")
			r := runDemo(t, "--backend", backend, "--epochs", "1", "--rows", "40000", "--workers", "2", "--model", "lr", "--sync", "--out", dir, "--baseline", "one-process,server-only")
			if *r.AUC < 0.55 || !cmp.Equal(r.Metrics, r.OneProcess.Metrics) || r.WeightsSHA256 != r.ReferenceSHA256 || r.Backend != backend {
				t.Errorf("got %+v", r)
			}
			// Exact sums do not depend on where a gradient is added.
			if o := r.ServerOnly; o == nil || !cmp.Equal(o.Metrics, r.Metrics) || o.GradientFrames == 0 || !(o.SamplesPerSecond > 0) ||
				o.GradientBytes <= r.ColdBytes || r.GradientBytes <= r.ColdBytes {
				t.Errorf("without the switch: %+v", o)
			}
			if o := r.OneProcess; !(o.SamplesPerSecond > 0) || !(r.ServerCPUSeconds > 0) || r.GradientFrames == 0 {
				t.Errorf("%+v; one process %+v", r, o)
			}
			var kept demo.Result
			text, err := os.ReadFile(filepath.Join(dir, "result.json"))
			if err != nil || json.Unmarshal(text, &kept) != nil || !cmp.Equal(kept, r) {
				t.Errorf("result.json: %v, %s", err, text)
			}
			last := node.Evaluation{Epoch: 1, Metrics: r.Metrics}
			for _, e := range [][]node.Evaluation{r.Evaluations, r.OneProcess.Evaluations, r.ServerOnly.Evaluations} {
				if len(e) != 1 || !cmp.Equal(e[0], last) {
					t.Errorf("evaluations %+v, want %+v", e, last)
				}
			}
			for _, chart := range []string{"auc.svg", "log-loss.svg"} {
				text, err := os.ReadFile(filepath.Join(dir, chart))
				for _, curve := range []string{"2 workers", "one process", "without the switch"} {
					if err != nil || !strings.Contains(string(text), ">"+curve+"<") {
						t.Errorf("%s has no curve %q, %v", chart, curve, err)
					}
				}
			}
			if w, err := weights.Load(filepath.Join(dir, "weights.libra")); err != nil || w.Kind() != "lr" || w.Len() < 1000 {
				t.Errorf("weights.libra: %v", err)
			}
			if hot, err := packer.LoadHotSet(filepath.Join(dir, "hot.libra")); err != nil || hot.Len() != r.HotRows {
				t.Errorf("hot.libra: %v", err)
			}
		})
	}
}

// With a codec, synchronous training gives the weights of one process that codes cold gradients
// likewise, on both backends, with one server and with three, whatever the network does.
func TestCodedTrainingIsExact(t *testing.T) {
	t.Parallel()
	for _, backend := range []string{"udp", "afxdp"} {
		for _, servers := range []string{"1", "3"} {
			t.Run(backend+", servers "+servers, func(t *testing.T) {
				if backend == "afxdp" {
					needRoot(t)
				}
				r := runDemo(t, "--backend", backend, "--servers", servers, "--epochs", "1", "--rows", "4000", "--workers", "3", "--factors", "3",
					"--sync", "--codec-bound", "10", "--codec-scale", "4", "--loss", "0.01", "--duplicate", "0.01", "--reorder", "0.01")
				if r.WeightsSHA256 != r.ReferenceSHA256 || len(r.WeightsSHA256) != 64 {
					t.Errorf("weights %s, reference %s", r.WeightsSHA256, r.ReferenceSHA256)
				}
				if r.SavedBytes <= 0 || r.ColdBytes == 0 || r.CodecBound != 10 || r.CodecScale != 4 || r.Retransmissions == 0 {
					t.Errorf("%d bytes saved of %d, codec %d, %d; %d retransmissions", r.SavedBytes, r.ColdBytes, r.CodecBound, r.CodecScale, r.Retransmissions)
				}
			})
		}
	}
}

// The files of "sudo make demo" belong to the user who ran it.
func TestDemoUnderSudo(t *testing.T) {
	t.Parallel()
	needRoot(t)
	parent := filepath.Join(t.TempDir(), "out")
	runDemoWith(t, []string{"SUDO_UID=12345", "SUDO_GID=12345"},
		"--backend", "udp", "--epochs", "1", "--rows", "2000", "--workers", "1", "--out", filepath.Join(parent, "kept"), "--capture", filepath.Join(parent, "frames"))
	files := 0
	err := filepath.WalkDir(parent, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if !e.IsDir() {
			files++
		}
		info, err := e.Info()
		if err == nil && info.Sys().(*syscall.Stat_t).Uid != 12345 {
			t.Errorf("%s is left to root", path)
		}
		return err
	})
	if err != nil || files < 7 { // weights, hot set, result, two curves, two captures
		t.Errorf("%d files, %v", files, err)
	}
}

// footprint is what a run with this folder of temporary files could leave behind. Processes of
// other programs, which come and go, and their namespaces do not count.
func footprint(t *testing.T, temporary string) map[string]int {
	t.Helper()
	found := map[string]int{}
	for what, pattern := range map[string]string{
		"links":      "/sys/class/net/*",
		"named ns":   "/run/netns/*",
		"pinned":     "/sys/fs/bpf/*", // a map or a program that outlives its processes
		"temp files": filepath.Join(temporary, "libra-demo-*"),
	} {
		names, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		found[what] = len(names)
	}
	processes, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	spaces := map[string]bool{}
	for _, p := range processes {
		// A process may end during the check; then it is not left behind.
		cmdline, err := os.ReadFile(p)
		if err != nil || !bytes.HasPrefix(cmdline, []byte(os.Args[0])) {
			continue
		}
		if bytes.Contains(cmdline, []byte("\x00--config\x00")) {
			found["processes"]++
		}
		if ns, err := os.Readlink(filepath.Join(filepath.Dir(p), "ns", "net")); err == nil {
			spaces[ns] = true
		}
	}
	found["namespaces"] = len(spaces)
	return found
}

// An interrupted demo must clean up after itself; a killed one must leave nothing that prevents a
// new run.
func TestDemoLeavesNothingBehind(t *testing.T) {
	needRoot(t)
	temporary := t.TempDir()
	env := []string{"TMPDIR=" + temporary}
	before := footprint(t, temporary)
	for _, c := range []struct {
		name   string
		signal syscall.Signal
		code   int
	}{
		{"interrupt", syscall.SIGINT, exitInterrupted},
		{"terminate", syscall.SIGTERM, exitInterrupted},
		{"kill", syscall.SIGKILL, -1},
	} {
		t.Run(c.name, func(t *testing.T) {
			cmd, stderr := trainCluster(t, env, append([]string{"demo", "-v", "--epochs", "1000"}, frappe(t)...)...)
			if err := cmd.Process.Signal(c.signal); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait() // its exit code is what counts
			if got := cmd.ProcessState.ExitCode(); got != c.code {
				t.Errorf("exit code %d, want %d\n%s", got, c.code, stderr.text.String())
			}
		})
	}
	// A killed parent cannot remove its temporary directory; the next run does.
	if r := runDemoWith(t, env, append(frappe(t), "--epochs", "1")...); *r.AUC < 0.6 {
		t.Errorf("a run after a killed one: %+v", r)
	}
	awaitFootprint(t, temporary, before)
}

// awaitFootprint waits until no more is left than before: the kernel ends children and namespaces
// of a killed parent after some time.
func awaitFootprint(t *testing.T, temporary string, before map[string]int) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for {
		after := footprint(t, temporary)
		same := true
		for what, n := range after {
			same = same && n <= before[what]
		}
		if same {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("before %v, after %v", before, after)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// trainCluster starts a command, with more variables in its environment, and waits until a worker
// of it trains.
func trainCluster(t *testing.T, env []string, args ...string) (cmd *exec.Cmd, stderr *waitBuffer) {
	t.Helper()
	cmd, stderr = libra(t.Context(), args...), &waitBuffer{want: "worker trains", found: make(chan struct{})}
	cmd.Env = append(cmd.Env, env...)
	cmd.Stderr = stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-stderr.found:
	case <-time.After(3 * time.Minute):
		_ = cmd.Process.Signal(os.Interrupt)
		_ = cmd.Wait() // it was interrupted
		t.Fatalf("training does not begin:\n%s", stderr.text.String())
	}
	return cmd, stderr
}

// waitBuffer collects a process's output and closes found when want appears.
type waitBuffer struct {
	want  string
	text  bytes.Buffer
	found chan struct{}
	done  bool
}

func (b *waitBuffer) Write(p []byte) (int, error) {
	b.text.Write(p)
	if !b.done && strings.Contains(b.text.String(), b.want) {
		b.done = true
		close(b.found)
	}
	return len(p), nil
}
