// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/libra-ina/libra/internal/test/realdata"
)

// dissected is tshark's result for a capture with Libra's dissector, as counts.
type dissected struct {
	frames    int
	types     map[string]int // HOT, COLD, ...
	inbound   int
	outbound  int
	retx      int
	undecoded int // not recognised as Libra
	checksums int // frames whose IPv4 or UDP checksum is wrong
	expert    []string
}

// dissect runs tshark on a capture: a file, or the data of in.
func dissect(t *testing.T, file string, in *bytes.Buffer, options ...string) dissected {
	t.Helper()
	path, err := exec.LookPath("tshark")
	if err != nil {
		t.Skip("tshark is not installed")
	}
	cmd := exec.Command(path, append([]string{
		"-X", "lua_script:../../wire/libra.lua", "-r", file, "-T", "fields",
		"-o", "udp.check_checksum:TRUE", "-o", "ip.check_checksum:TRUE",
		"-e", "_ws.col.Protocol", "-e", "libra.type", "-e", "frame.packet_flags_direction", "-e", "libra.flags.retx",
		"-e", "ip.checksum.status", "-e", "udp.checksum.status", "-e", "_ws.expert.message", "-e", "_ws.malformed",
	}, options...)...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if in != nil {
		cmd.Stdin = in
	}
	out, err := cmd.Output()
	if err != nil || strings.Contains(stderr.String(), "Lua") || strings.Contains(stderr.String(), "cut short") {
		t.Fatalf("tshark %s: %v\n%s", file, err, stderr.String())
	}
	names := map[string]string{"1": "HOT", "2": "COLD", "3": "PULL", "4": "ROWS", "5": "ACK", "6": "ERROR"}
	d := dissected{types: map[string]int{}}
	for line := range strings.Lines(string(out)) {
		v := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		d.frames++
		d.types[names[v[1]]]++
		switch v[2] {
		case "0x00000001":
			d.inbound++
		case "0x00000002":
			d.outbound++
		}
		if v[3] == "1" {
			d.retx++
		}
		if v[0] != "Libra" {
			d.undecoded++
		}
		if v[4] != "1" || v[5] != "1" {
			d.checksums++
		}
		if v[6]+v[7] != "" {
			d.expert = append(d.expert, v[6]+v[7])
		}
	}
	return d
}

// check looks for errors that no capture may contain.
func (d dissected) check(t *testing.T, types ...string) {
	t.Helper()
	if d.undecoded > 0 || d.checksums > 0 || len(d.expert) > 0 || d.inbound+d.outbound != d.frames {
		t.Errorf("%d frames: %d not recognised, %d with bad checksums, %d inbound, %d outbound, expert information %q",
			d.frames, d.undecoded, d.checksums, d.inbound, d.outbound, d.expert)
	}
	for _, name := range types {
		if d.types[name] == 0 {
			t.Errorf("no %s frame among %v", name, d.types)
		}
	}
}

// shortFrappe writes the first rows of the real data: enough for frames of all
// types, and few enough for a dissector in Lua.
func shortFrappe(t *testing.T, rows int) string {
	t.Helper()
	f, err := os.Open(realdata.Path(t, "frappe-train.libfm.gz"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	gz, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	var short strings.Builder
	lines := bufio.NewScanner(gz)
	for range rows {
		if !lines.Scan() {
			t.Fatalf("fewer than %d rows: %v", rows, lines.Err())
		}
		fmt.Fprintln(&short, lines.Text())
	}
	return writeFile(t, "short.libfm", short.String())
}

// Wireshark must be able to read the demo's captures: every frame that was sent, including faults
// and repetitions, without one that the dissector finds malformed.
func TestDemoCapture(t *testing.T) {
	t.Parallel()
	for _, backend := range []string{"afxdp", "udp"} {
		t.Run(backend, func(t *testing.T) {
			if backend == "afxdp" {
				needRoot(t)
			}
			dir := filepath.Join(t.TempDir(), "captures")
			r := runDemo(t, "--backend", backend, "--data", shortFrappe(t, 2000), "--epochs", "1", "--workers", "2", "--capture", dir,
				"--loss", "0.03", "--duplicate", "0.03", "--reorder", "0.03")
			var options []string
			if backend == "udp" {
				options = portOption(t, filepath.Join(dir, "ps.pcapng"))
			}
			var sent, retx int
			for i := 1; i <= 2; i++ {
				d := dissect(t, filepath.Join(dir, fmt.Sprintf("worker-%d.pcapng", i)), nil, options...)
				d.check(t, "HOT", "COLD", "PULL", "ROWS", "ACK")
				if got := d.types["HOT"] + d.types["COLD"] + d.types["PULL"]; got != d.outbound {
					t.Errorf("worker %d sent %d frames, of which %d are a worker's: %v", i, d.outbound, got, d.types)
				}
				sent, retx = sent+d.outbound, retx+d.retx
			}
			d := dissect(t, filepath.Join(dir, "ps.pcapng"), nil, options...)
			d.check(t, "COLD", "PULL", "ROWS", "ACK")
			if d.types["HOT"] > 0 {
				t.Errorf("%d hot frames reached the parameter server", d.types["HOT"])
			}
			if retx == 0 || r.Retransmissions == 0 || r.FaultsDropped == 0 {
				t.Errorf("%d repetitions captured; %+v", retx, r)
			}
			// Each frame once, its repetitions, and copies of duplicated ones, minus those lost on
			// sending.
			if low, high := r.Frames-r.FaultsDropped, r.Frames+r.Retransmissions+r.FaultsDuplicated; uint64(sent) < low || uint64(sent) > high {
				t.Errorf("workers sent %d frames according to the captures, between %d and %d by their counters", sent, low, high)
			}
		})
	}
}

// portOption extracts the option for tshark from a capture's comment, as a user would.
func portOption(t *testing.T, file string) []string {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := bytes.Cut(data, []byte("-o libra.port:"))
	if !found {
		t.Fatalf("the comment of %s does not name the port", file)
	}
	port, _, _ := bytes.Cut(rest, []byte(" "))
	return []string{"-o", "libra.port:" + string(port)}
}

// TestCaptureRunning attaches to the processes of a running demo, in their
// network namespaces, and releases them again.
func TestCaptureRunning(t *testing.T) {
	t.Parallel()
	needRoot(t)
	cmd, _ := trainCluster(t, nil, "demo", "-v", "--epochs", "100000", "--workers", "2", "--data", shortFrappe(t, 1000))
	end := sync.OnceFunc(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		_ = cmd.Wait() // it was interrupted
	})
	defer end()
	pids := capturable(t, cmd.Process.Pid)

	file := filepath.Join(t.TempDir(), "live.pcapng")
	worker := strconv.Itoa(pids["worker 1"])
	// Two at once: one into a file, one through a pipe.
	second := libra(t.Context(), "capture", "--pid", worker, "--count", "300")
	var piped bytes.Buffer
	second.Stdout = &piped
	if err := second.Start(); err != nil {
		t.Fatal(err)
	}
	if _, stderr, code := output(t, "capture", "--pid", worker, "--count", "300", "--out", file); code != 0 {
		t.Fatalf("exit code %d\n%s", code, stderr)
	}
	if err := second.Wait(); err != nil {
		t.Fatal(err)
	}
	// A capture limited by time may have no frame or a hundred thousand, for which tshark takes
	// minutes.
	var counted string
	for _, limit := range [][]string{{"--duration", "300ms"}, {"--count", "3000"}} {
		stdout, stderrText, code := output(t, append([]string{"capture", "--pid", strconv.Itoa(pids["ps"])}, limit...)...)
		if code != 0 || !strings.Contains(stderrText, "captured") {
			t.Fatalf("%v: exit code %d\n%s", limit, code, stderrText)
		}
		counted = stdout
	}

	// The demo itself has no link, and its workers continue.
	if _, stderr, code := output(t, "capture", "--pid", strconv.Itoa(cmd.Process.Pid)); code != exitFailure || !strings.Contains(stderr, "not a running") {
		t.Errorf("capture of the demo: code %d\n%s", code, stderr)
	}
	if again := capturable(t, cmd.Process.Pid); again["worker 1"] != pids["worker 1"] {
		t.Errorf("processes were %v, are %v", pids, again)
	}

	end() // it leaves tshark the processors
	for name, d := range map[string]dissected{"file": dissect(t, file, nil), "pipe": dissect(t, "-", &piped)} {
		if d.check(t, "HOT", "ACK"); d.frames != 300 {
			t.Errorf("%s: %d frames, want 300", name, d.frames)
		}
	}
	dissect(t, "-", bytes.NewBufferString(counted)).check(t, "PULL", "ROWS")
}

// capturable returns the listed processes of a demo, by name, when there are three.
func capturable(t *testing.T, demo int) map[string]int {
	t.Helper()
	for range 300 {
		stdout, stderr, code := output(t, "capture", "--list", "--json")
		if code != 0 {
			t.Fatal(stderr)
		}
		var all CaptureList
		if err := json.Unmarshal([]byte(stdout), &all); err != nil {
			t.Fatal(err)
		}
		pids := map[string]int{}
		for _, s := range all.Processes {
			// Other demos may run on this machine.
			status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.PID))
			if err == nil && strings.Contains(string(status), fmt.Sprintf("\nPPid:\t%d\n", demo)) {
				pids[s.Process] = s.PID
			}
		}
		if len(pids) == 3 {
			return pids
		}
		time.Sleep(100 * time.Millisecond)
	}
	t.Fatal("the demo's processes are not listed")
	return nil
}

func TestCaptureErrors(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		args []string
		code int
		want string
	}{
		"no process named":  {nil, exitUsage, "--pid is required"},
		"no such process":   {[]string{"--pid", "1073741824"}, exitFailure, "no such process"},
		"not ours":          {[]string{"--pid", strconv.Itoa(os.Getpid())}, exitFailure, "not a running 'libra worker'"},
		"negative duration": {[]string{"--pid", "1", "--duration", "-1s"}, exitUsage, "--duration -1s"},
		"list and pid":      {[]string{"--pid", "1", "--list"}, exitUsage, "exclude"},
		"json without list": {[]string{"--pid", "1", "--json"}, exitUsage, "--json goes with --list"},
	} {
		t.Run(name, func(t *testing.T) {
			stdout, stderr, code := output(t, append([]string{"capture"}, c.args...)...)
			if code != c.code || !strings.Contains(stderr, c.want) || stdout != "" {
				t.Errorf("exit code %d, %q on standard output, want %d and %q in:\n%s", code, stdout, c.code, c.want, stderr)
			}
		})
	}
	// A folder that cannot be created ends the demo before it trains.
	_, stderr, code := output(t, "demo", "--backend", "udp", "--capture", "/dev/null/x", "--data", writeFile(t, "rows.libfm", strings.Repeat("1 1:1 2:1\n-1 3:1\n", 50)))
	if code != exitFailure || !strings.Contains(stderr, "/dev/null") {
		t.Errorf("exit code %d\n%s", code, stderr)
	}
}
