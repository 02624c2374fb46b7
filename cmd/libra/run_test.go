// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/libra-ina/libra/cluster/demo"
	"github.com/libra-ina/libra/internal/trace"
	"github.com/libra-ina/libra/packer"
)

// Each worker gets torchrun's variables and its agent's socket; its output is printed, and the
// result is the last line.
func TestRunTellsWorkersWhoTheyAre(t *testing.T) {
	t.Parallel()
	for _, backend := range []string{"udp", "afxdp"} {
		t.Run(backend, func(t *testing.T) {
			if backend == "afxdp" {
				needRoot(t)
			}
			script := `test -S "$LIBRA_AGENT"; echo "$RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $GROUP_RANK $GROUP_WORLD_SIZE $LIBRA_JOB ${LIBRA_AGENT##*/}"; echo "$MASTER_ADDR" $((MASTER_PORT > 0)) "$1"`
			cmd := libra(t.Context(), "run", "--backend", backend, "--hosts", "2", "--workers", "4", "--job", "clicks", "--sync", "--dim", "4", "--json", "sh", "-ec", script, "sh", "--json")
			out, err := cmd.Output()
			if err != nil {
				t.Fatal(err)
			}
			lines := strings.Split(strings.TrimSpace(string(out)), "\n")
			slices.Sort(lines[:len(lines)-1])
			master := map[string]string{"udp": "127.0.0.1", "afxdp": "10.77.0.3"}[backend] + " 1 --json"
			want := []string{
				"rank 0 | 0 4 0 2 0 2 clicks agent-1.sock", "rank 0 | " + master,
				"rank 1 | 1 4 1 2 0 2 clicks agent-1.sock", "rank 1 | " + master,
				"rank 2 | " + master, "rank 2 | 2 4 0 2 1 2 clicks agent-2.sock",
				"rank 3 | " + master, "rank 3 | 3 4 1 2 1 2 clicks agent-2.sock",
			}
			slices.Sort(want)
			if !slices.Equal(lines[:len(lines)-1], want) {
				t.Errorf("the workers print\n%s", strings.Join(lines, "\n"))
			}
			last := lines[len(lines)-1]
			conforms(t, "libra run", last)
			var r demo.ProgramsResult
			if err := json.Unmarshal([]byte(last), &r); err != nil || len(r.Workers) != 4 || r.Workers[3].Host != 2 || r.WeightsSHA256 == "" {
				t.Errorf("%v: %s", err, last)
			}
		})
	}
}

// A worker that fails ends the others, and its status is that of the command.
func TestRunFails(t *testing.T) {
	t.Parallel()
	before := time.Now()
	_, stderr, code := output(t, "run", "--backend", "udp", "--workers", "2", "--", "sh", "-c", `test "$RANK" = 0 && exec sleep 600; echo "no such data" >&2; exit 7`)
	if code != 7 || !strings.Contains(stderr, "libra: rank 1 exited with status 7") || !strings.Contains(stderr, "no such data") || time.Since(before) > 5*time.Minute {
		t.Errorf("code %d after %v: %s", code, time.Since(before), stderr)
	}
	_, stderr, code = output(t, "run", "--backend", "udp", "--", "sh", "-c", "kill -9 $$")
	if code != exitFailure || !strings.Contains(stderr, "rank 0 was ended by a signal (killed)") {
		t.Errorf("code %d: %s", code, stderr)
	}
	// Rank 0 has lost rank 1, which takes its time to end.
	_, stderr, code = output(t, "run", "--backend", "udp", "--workers", "2", "--", "sh", "-c", `test "$RANK" = 0 && sleep 0.5 && echo "libra.PartyGone: PARTY_GONE: another client" >&2 && exit 1; sleep 1; echo "no such data" >&2; exit 7`)
	if code != 7 || !strings.Contains(stderr, "libra: rank 1 exited with status 7; last lines of its standard error:\n  no such data\nand rank 0 exited with status 1; last lines of its standard error:\n  libra.PartyGone: PARTY_GONE") {
		t.Errorf("code %d: %s", code, stderr)
	}
	for want, args := range map[string][]string{
		"no command: give it after --":                                      {},
		"--workers 3 on 2 hosts: each host runs as many":                    {"--hosts", "2", "--workers", "3", "true"},
		"--dim 66: it must be from 1 to 65":                                 {"--dim", "66", "true"},
		"--harvest 1s: with --sync every step is harvested":                 {"--sync", "--harvest", "1s", "true"},
		"--optimizer none: it keeps no weights, only":                       {"--optimizer", "none", "true"},
		"--learning-rate 1: --optimizer none changes none":                  {"--sync", "--optimizer", "none", "--learning-rate", "1", "true"},
		"--hosts 65: it must be from 1 to 64":                               {"--hosts", "65", "--workers", "65", "true"},
		`--job "" is 0 bytes long: it must be 1 to 63`:                      {"--job", "", "true"},
		`--backend tcp: "tcp" is none of afxdp, udp`:                        {"--backend", "tcp", "true"},
		"--workers 130: the limit is 64":                                    {"--workers", "130", "true"},
		"--hot-rows 16777216: a job has at most 16777215 rows of 1 scalars": {"--hot-rows", "16777216", "true"},
		"--hot-rows 4194305: a job has at most 4194304 rows of 16 scalars":  {"--hot-rows", "4194305", "--dim", "16", "true"},
		"--learning-rate -1: it must be above zero":                         {"--learning-rate", "-1", "true"},
		"--line-rate NaN: it must be from 0.01 to 100,000 Mb/s":             {"--line-rate", "NaN", "true"},
		"--line-rate 250: with --backend udp all hosts are this machine":    {"--backend", "udp", "--line-rate", "250", "true"},
	} {
		if _, stderr, code := inProcess(t, append([]string{"run"}, args...)...); code != exitUsage || !strings.Contains(stderr, want) {
			t.Errorf("%v: code %d: %s", args, code, stderr)
		}
	}
	const dim = 64
	keys := make([]uint64, packer.MaxHotRows(dim)+1)
	for i := range keys {
		keys[i] = uint64(i)
	}
	large := filepath.Join(t.TempDir(), "large.libra")
	hot, err := packer.NewHotSet(dim, keys, nil, packer.Meta{})
	if err := errors.Join(err, packer.SaveHotSet(large, hot)); err != nil {
		t.Fatal(err)
	}
	for want, args := range map[string][]string{
		`command: exec: "no-such-program": executable file not found`:                {"no-such-program"},
		"nothing.libra: no such file":                                                {"--hot-set", "nothing.libra", "true"},
		large + ": it has 1048577 rows, and a job has at most 1048576 of 64 scalars": {"--hot-set", large, "--dim", "64", "true"},
	} {
		if _, stderr, code := inProcess(t, append([]string{"run", "--backend", "udp"}, args...)...); code != exitFailure || !strings.Contains(stderr, want) {
			t.Errorf("%v: code %d: %s", args, code, stderr)
		}
	}
}

// Ctrl-C ends workers, agents, server and switch, and leaves nothing behind.
func TestRunLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	backends := []string{"udp"}
	if os.Geteuid() == 0 {
		backends = append(backends, "afxdp")
	}
	for _, backend := range backends {
		mark := filepath.Join(t.TempDir(), "began")
		cmd := libra(t.Context(), "run", "--backend", backend, "--", "sh", "-c", "echo $LIBRA_AGENT > "+mark+".new; mv "+mark+".new "+mark+"; exec sleep 60")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		var socket []byte
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
			var err error
			if socket, err = os.ReadFile(mark); err == nil {
				break
			}
			if time.Now().After(deadline) {
				t.Fatal("the worker does not begin")
			}
		}
		if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait() // its exit code is what counts
		if code := cmd.ProcessState.ExitCode(); code != exitInterrupted {
			t.Errorf("%s: exit code %d", backend, code)
		}
		if _, err := os.Stat(filepath.Dir(strings.TrimSpace(string(socket)))); err == nil {
			t.Errorf("%s: the folder of %s is still there", backend, socket)
		}
	}
}

// A folder with files is refused before anything starts. The trace of a program that fails is
// marked as cut short.
func TestRunRecordsIntoNewFolders(t *testing.T) {
	t.Parallel()
	used := t.TempDir()
	if err := os.WriteFile(filepath.Join(used, "notes.txt"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	_, stderr, code := output(t, "run", "--backend", "udp", "--record", used, "--", "sh", "-c", "echo started >&2")
	if want := "--record: trace: " + used + " is not empty, it has notes.txt: give a folder that does not exist"; code != exitFailure ||
		!strings.Contains(stderr, want) || strings.Contains(stderr, "started") {
		t.Errorf("code %d: %s", code, stderr)
	}
	dir := filepath.Join(used, "new")
	if _, stderr, code := output(t, "run", "--backend", "udp", "--record", dir, "--", "false"); code != 1 {
		t.Errorf("code %d: %s", code, stderr)
	}
	if _, err := trace.Read(dir); err == nil || !strings.Contains(err.Error(), "cut short") {
		t.Errorf("%v, want that the trace was cut short", err)
	}
	_, stderr, code = output(t, "run", "--backend", "udp", "--record", filepath.Join(used, "idle"), "--", "true")
	if code != exitFailure || !strings.Contains(stderr, "rank 0 pushed nothing to job default") {
		t.Errorf("code %d: %s", code, stderr)
	}
}
