// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/libra-ina/libra/cluster/demo"
	"github.com/libra-ina/libra/packer"
)

// hotSetOf writes a hot set.
func hotSetOf(t *testing.T, dim int, keys ...uint64) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "hot.libra")
	hot, err := packer.NewHotSet(dim, keys, nil, packer.Meta{})
	if err := errors.Join(err, packer.SaveHotSet(path, hot)); err != nil {
		t.Fatal(err)
	}
	return path
}

// Each process of ps-lite gets its role, ps-lite's variables and the van's, and runs on its host.
func TestRunPSLiteTellsProcessesWhoTheyAre(t *testing.T) {
	t.Parallel()
	hot := hotSetOf(t, 2, 5, 3, 4)
	for network, more := range map[string][]string{"loopback": nil, "namespaces": {"--namespaces"}} {
		t.Run(network, func(t *testing.T) {
			if more != nil {
				needRoot(t)
			}
			script := `test -S "$LIBRA_AGENT"; test "$LIBRA_HOT_SET" = ` + hot + `; test "$1" = "$DMLC_ROLE"
				echo "$DMLC_NUM_SERVER $DMLC_NUM_WORKER $DMLC_PS_VAN_TYPE $LIBRA_JOB $LIBRA_HOT_EXPONENT ${LIBRA_AGENT##*/} $((DMLC_PS_ROOT_PORT > 0))"
				echo "$DMLC_PS_ROOT_URI $DMLC_NODE_HOST"`
			args := append([]string{"run", "--pslite", "--backend", "udp", "--hosts", "3", "--servers", "2", "--workers", "4", "--customers", "2",
				"--hot-set", hot, "--loss", "0.01", "--json"}, more...)
			out, err := libra(t.Context(), append(args, "--", "sh", "-ec", script, "sh", demo.RoleArgument)...).Output()
			if err != nil {
				t.Fatal(err)
			}
			lines := strings.Split(strings.TrimSpace(string(out)), "\n")
			var want []string
			address := map[string]string{"loopback": "127.76.66.%d", "namespaces": "10.77.0.%d"}[network]
			for name, host := range map[string]int{"scheduler": 1, "server 0": 2, "server 1": 3, "worker 0": 1, "worker 1": 2} {
				want = append(want, fmt.Sprintf("%s | 2 4 libra hot -30 agent-%d.sock 1", name, host),
					fmt.Sprintf("%s | "+address+" "+address, name, 2, 1+host))
			}
			last := lines[len(lines)-1]
			lines = lines[:len(lines)-1]
			slices.Sort(lines)
			slices.Sort(want)
			if !slices.Equal(lines, want) {
				t.Errorf("the processes print\n%s\nwant\n%s", strings.Join(lines, "\n"), strings.Join(want, "\n"))
			}
			conforms(t, "libra run", last)
			var r demo.ProgramsResult
			if err := json.Unmarshal([]byte(last), &r); err != nil || r.Scheduler == nil || len(r.Servers) != 2 || len(r.Workers) != 2 || r.Servers[1].Host != 3 {
				t.Errorf("%v: %s", err, last)
			}
		})
	}
}

// The process that fails is named, its status is that of the command, and the others end with it.
func TestRunPSLiteFails(t *testing.T) {
	t.Parallel()
	before := time.Now()
	_, stderr, code := output(t, "run", "--pslite", "--backend", "udp", "--workers", "2", "--", "sh", "-c", `test "$DMLC_ROLE" = server || exec sleep 600; echo "no such key" >&2; exit 7`)
	if code != 7 || !strings.Contains(stderr, "libra: server 0 exited with status 7") || !strings.Contains(stderr, "no such key") || time.Since(before) > 5*time.Minute {
		t.Errorf("code %d after %v: %s", code, time.Since(before), stderr)
	}
	_, stderr, code = output(t, "run", "--pslite", "--backend", "udp", "--", "sh", "-c", `test "$DMLC_ROLE" = worker || exec sleep 600; kill -9 $$`)
	if code != exitFailure || !strings.Contains(stderr, "worker 0 was ended by a signal (killed)") {
		t.Errorf("code %d: %s", code, stderr)
	}
	hot := hotSetOf(t, 1, 3)
	for want, args := range map[string][]string{
		"no command: give it after --, as in 'libra run --pslite":             {"--pslite"},
		"--servers 0: it must be from 1 to 64":                                {"--pslite", "--servers", "0", "true"},
		"--servers 65: it must be from 1 to 64":                               {"--pslite", "--servers", "65", "true"},
		"--workers 65: it must be from 1 to 64":                               {"--pslite", "--workers", "65", "true"},
		"--customers 2 of 3 workers: each process is as many workers":         {"--pslite", "--workers", "3", "--customers", "2", "true"},
		"--hosts 4: it must be from 1 to 3, a host for each process":          {"--pslite", "--hosts", "4", "true"},
		"--servers 2 with --backend afxdp: an AF_XDP link takes an interface": {"--pslite", "--servers", "2", "--hot-set", hot, "true"},
		"--loss, --duplicate, --reorder and --harvest concern hot pairs":      {"--pslite", "--loss", "0.1", "true"},
		"--reorder: probability 1 is not in":                                  {"--pslite", "--backend", "udp", "--reorder", "1", "--hot-set", hot, "true"},
		"--harvest -1s: it must be above zero":                                {"--pslite", "--harvest", "-1s", "true"},
		"--sync is for jobs with a server of Libra's":                         {"--pslite", "--sync", "true"},
		"--switches is for jobs with a server of Libra's":                     {"--pslite", "--switches", "3", "true"},
		"--dim is for jobs with a server of Libra's":                          {"--pslite", "--dim", "2", "true"},
		"--servers is for --pslite: add that, or leave it out":                {"--servers", "2", "true"},
		"--van is for --pslite: add that, or leave it out":                    {"--van", "x", "true"},
	} {
		if _, stderr, code := inProcess(t, append([]string{"run"}, args...)...); code != exitUsage || !strings.Contains(stderr, want) {
			t.Errorf("%v: code %d: %s", args, code, stderr)
		}
	}
	for want, args := range map[string][]string{
		`command: exec: "no-such-program": executable file not found`: {"no-such-program"},
		"--hot-set: ": {"--hot-set", "nothing.libra", "true"},
		"no-van.so: no such file or directory: make it with": {"--van", "no-van.so", "true"},
	} {
		if _, stderr, code := inProcess(t, append([]string{"run", "--pslite", "--backend", "udp"}, args...)...); code != exitFailure || !strings.Contains(stderr, want) {
			t.Errorf("%v: code %d: %s", args, code, stderr)
		}
	}
}

// A hot set is found in keys of pushes, all of which are counted.
func TestHotSetOfPushes(t *testing.T) {
	keys := writeFile(t, "worker-9.keys", "1 2 3\n2 3\n3 18446744073709551614\n")
	out := filepath.Join(t.TempDir(), "hot.libra")
	stdout, stderr, code := inProcess(t, "hotset", "build", "--keys", filepath.Dir(keys), "--out", out, "--hot-rows", "2", "--json")
	hot, err := packer.LoadHotSet(out)
	if code != 0 || err != nil || hot.Len() != 2 || hot.Dim() != 1 || hot.Key(0) != 3 || hot.Key(1) != 2 || hot.Count(0) != 3 || hot.Meta().Rate != 1 {
		t.Errorf("code %d, %v, %v: %s%s", code, err, hot, stdout, stderr)
	}
	conforms(t, "libra hotset build", stdout)
}

// Ctrl-C ends all processes, agents and switch, and leaves nothing behind.
func TestRunPSLiteLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cmd := libra(t.Context(), "run", "--pslite", "--backend", "udp", "--hot-set", hotSetOf(t, 1, 3), "--", "sh", "-c",
		"echo $$ $LIBRA_AGENT > "+dir+"/$DMLC_ROLE.new; mv "+dir+"/$DMLC_ROLE.new "+dir+"/$DMLC_ROLE; exec sleep 60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var began []string
	for deadline := time.Now().Add(time.Minute); len(began) < 3; time.Sleep(10 * time.Millisecond) {
		began, _ = filepath.Glob(filepath.Join(dir, "[a-z]*r"))
		if time.Now().After(deadline) {
			t.Fatal("the processes do not begin")
		}
	}
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // its exit code is what counts
	if code := cmd.ProcessState.ExitCode(); code != exitInterrupted {
		t.Errorf("exit code %d", code)
	}
	for _, file := range began {
		var pid int
		var socket string
		text, err := os.ReadFile(file)
		if _, err2 := fmt.Sscan(string(text), &pid, &socket); errors.Join(err, err2) != nil {
			t.Fatal(err, err2)
		}
		if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
			t.Errorf("%s: process %d is still there: %v", file, pid, err)
		}
		if _, err := os.Stat(filepath.Dir(socket)); err == nil {
			t.Errorf("the folder of %s is still there", socket)
		}
	}
}
