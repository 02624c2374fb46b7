// SPDX-License-Identifier: Apache-2.0

//go:build linux

package clients_test

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

var psLiteTime = flag.Duration("pslite-time", 5*time.Second, "how long workers of ps-lite push and pull")

// psLiteLimit is the time limit of processes, which run as long as flags want.
const psLiteLimit = 2 * time.Hour

// psLiteJob is a running program of ps-lite, pslite/test/sums.cc.
type psLiteJob struct {
	t                *testing.T
	dir              string // of its results
	scheduler        *psLiteProcess
	servers, workers []*psLiteProcess
}

// psLiteProcess is one process of it.
type psLiteProcess struct {
	name  string
	host  int
	cmd   *exec.Cmd
	in    io.Closer
	ended chan struct{}

	mu    sync.Mutex
	lines []string // of standard output
	log   strings.Builder
	err   error     // once it has ended
	at    time.Time // when that was
}

// Write adds to the log.
func (p *psLiteProcess) Write(text []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.Write(text)
}

func (p *psLiteProcess) said() (lines []string, log string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.lines), p.log.String()
}

// psLiteBuiltIn returns the folder with what scripts/pslite.sh has built, or ends the test.
func psLiteBuiltIn(t *testing.T) string {
	t.Helper()
	built := os.Getenv(psLiteBuilt)
	if built == "" {
		t.Skip("the van is tested without ps-lite; make pslite PSLITE=DIR tests it with a tree of ps-lite")
	}
	return built
}

// startPSLite starts a program on hosts of a bed, with the jobs of a range.
func (b *rangeBed) startPSLite(ranged string, servers, workers []int) *psLiteJob {
	return b.startPSLiteOf(plain, ranged, servers, workers)
}

// startPSLiteOf does that with a variant of the program. That with a sanitizer has the van in it.
func (b *rangeBed) startPSLiteOf(v variant, ranged string, servers, workers []int) *psLiteJob {
	b.t.Helper()
	built := psLiteBuiltIn(b.t)
	j := &psLiteJob{t: b.t, dir: b.t.TempDir()}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	races, err := filepath.Abs("pslite/test/races")
	if err != nil {
		b.t.Fatal(err)
	}
	_ = l.Close()
	start := func(role string, number, host int) *psLiteProcess {
		p := &psLiteProcess{name: fmt.Sprintf("%s %d", role, number), host: host, ended: make(chan struct{})}
		command, van := []string{filepath.Join(built, "sums"), j.dir}, filepath.Join(built, "libra_van.so")
		if v != plain {
			command[0] += "-" + v.name
			van = ""
		}
		if v == thread && exec.Command("setarch", "-R", "true").Run() == nil { // addresses that it knows
			command = append([]string{"setarch", "-R"}, command...)
		}
		p.cmd = within(b.t, psLiteLimit, command[0], command[1:]...)
		p.cmd.Env = append(os.Environ(), "DMLC_ROLE="+role, "DMLC_NUM_SERVER="+strconv.Itoa(len(servers)), "DMLC_NUM_WORKER="+strconv.Itoa(len(workers)),
			"DMLC_PS_ROOT_URI=127.0.0.1", "DMLC_PS_ROOT_PORT="+strconv.Itoa(port), "DMLC_NODE_HOST=127.0.0.1", "DMLC_PS_VAN_TYPE=libra",
			"LD_PRELOAD="+van, "ASAN_OPTIONS=detect_leaks=0", "TSAN_OPTIONS=suppressions="+races, "LIBRA_HOT_SET="+b.path("hot.libra"), "LIBRA_JOB="+ranged,
			"LIBRA_AGENT="+b.socket(host), "LIBRA_PS_DEAD=exit")
		p.cmd.Stderr = p
		in, err1 := p.cmd.StdinPipe()
		out, err2 := p.cmd.StdoutPipe()
		if err := errors.Join(err1, err2, p.cmd.Start()); err != nil {
			b.t.Fatal(err)
		}
		p.in = in
		go func() {
			defer close(p.ended)
			for lines := bufio.NewScanner(out); lines.Scan(); {
				p.mu.Lock()
				p.lines = append(p.lines, lines.Text())
				p.mu.Unlock()
			}
			p.err, p.at = p.cmd.Wait(), time.Now()
		}()
		b.t.Cleanup(func() {
			_ = p.cmd.Process.Kill()
			<-p.ended
			if _, log := p.said(); b.t.Failed() {
				b.t.Logf("%s on host %d: %v\n%s", p.name, p.host, p.err, log)
			}
		})
		return p
	}
	j.scheduler = start("scheduler", 0, 0)
	for i, host := range servers {
		j.servers = append(j.servers, start("server", i, host))
	}
	for i, host := range workers {
		j.workers = append(j.workers, start("worker", i, host))
	}
	return j
}

func (j *psLiteJob) all() []*psLiteProcess {
	return slices.Concat([]*psLiteProcess{j.scheduler}, j.servers, j.workers)
}

// awaitLines waits until a process has printed more than n lines.
func (j *psLiteJob) awaitLines(p *psLiteProcess, n int) []string {
	j.t.Helper()
	for end := time.Now().Add(limit); ; time.Sleep(time.Millisecond) {
		lines, _ := p.said()
		if len(lines) > n {
			return lines
		}
		select {
		case <-p.ended:
			j.t.Fatalf("%s has ended: %v", p.name, p.err)
		default:
		}
		if time.Now().After(end) {
			j.t.Fatalf("%s has printed %q", p.name, lines)
		}
	}
}

// awaitEnd waits until a process ends, and returns its exit status and its log.
func (j *psLiteJob) awaitEnd(p *psLiteProcess) (status int, log string) {
	j.t.Helper()
	select {
	case <-p.ended:
	case <-time.After(limit):
		j.t.Fatalf("%s does not end", p.name)
	}
	_, log = p.said()
	return p.cmd.ProcessState.ExitCode(), log
}

// kill kills what is left of a program.
func (j *psLiteJob) kill() {
	for _, p := range j.all() {
		_ = p.cmd.Process.Kill()
		<-p.ended
	}
}

// numbers reads a file with so many columns of numbers.
func (j *psLiteJob) numbers(name string, columns int) (all [][]float64) {
	j.t.Helper()
	text, err := os.ReadFile(filepath.Join(j.dir, name))
	if err != nil {
		j.t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) != columns {
			j.t.Fatalf("%s: %q", name, line)
		}
		row := make([]float64, columns)
		for i, field := range fields {
			if row[i], err = strconv.ParseFloat(field, 64); err != nil {
				j.t.Fatal(name, err)
			}
		}
		all = append(all, row)
	}
	if len(all) != psLiteKeys {
		j.t.Fatalf("%s has %d lines", name, len(all))
	}
	return all
}

// finish ends a program as it should end: each process exits with 0, and the stores have the exact
// sums, which the workers' last pulls saw. It returns the number of pushes.
func (j *psLiteJob) finish() (pushes int) {
	j.t.Helper()
	for _, w := range j.workers {
		_ = w.in.Close()
	}
	for _, p := range j.all() {
		if status, _ := j.awaitEnd(p); status != 0 {
			j.t.Errorf("%s ends with status %d", p.name, status)
		}
	}
	if j.t.Failed() {
		j.t.FailNow()
	}
	var pushed, stored [psLiteKeys]float64
	views := map[string][][]float64{}
	for i, w := range j.workers {
		name := fmt.Sprintf("worker-%d", i)
		views[name] = j.numbers(name, 2)
		for k, row := range views[name] {
			pushed[k] += row[0]
		}
		lines := j.awaitLines(w, 0)
		n, _ := strconv.Atoi(lines[len(lines)-1])
		pushes += n
	}
	for i := range j.servers {
		for k, row := range j.numbers(fmt.Sprintf("server-%d", i), 1) {
			stored[k] += row[0]
		}
	}
	if pushed != stored {
		j.t.Errorf("the workers have pushed %v, and the stores have %v", pushed, stored)
	}
	for _, name := range slices.Sorted(maps.Keys(views)) {
		for k, row := range views[name] {
			if row[1] != float64(float32(pushed[k])) {
				j.t.Errorf("key %d: %s has pulled %v, all have pushed %v", k, name, row[1], pushed[k])
			}
		}
	}
	return pushes
}

// newPSLiteBed starts a switch and agents, with jobs for programs of two servers and the keys of
// ps-lite's tests.
func newPSLiteBed(t *testing.T, hosts int, more ...string) *rangeBed {
	t.Helper()
	psLiteBuiltIn(t)
	b := &rangeBed{t: t, hot: psLiteHotSet(t), more: more, most: psLiteLimit}
	b.agents = make([]*exec.Cmd, hosts)
	b.startUDP(2)
	return b
}

// Four workers on two hosts push integers to random keys and pull for a while, and frames are lost,
// duplicated and reordered: each pull has at least what its worker had acknowledged, and the stores
// end with the exact sums.
func TestPSLiteSums(t *testing.T) {
	t.Parallel()
	b := newPSLiteBed(t, 2)
	j := b.startPSLite("hot", []int{0, 1}, []int{0, 0, 1, 1})
	for _, w := range j.workers {
		j.awaitLines(w, 1)
	}
	select {
	case <-time.After(*psLiteTime):
	case <-j.workers[0].ended:
	}
	t.Logf("%d pushes in %v", j.finish(), *psLiteTime)
	for host := range b.agents {
		b.noClients(host)
	}
}

// The same on one host for a moment, with a sanitizer in program, van and ps-lite, which does not
// free all that it has. What races in ps-lite itself is listed in pslite/test/races.
func TestPSLiteSanitized(t *testing.T) {
	for _, v := range []variant{address, thread} {
		t.Run(v.name, func(t *testing.T) {
			t.Parallel()
			if _, err := os.Stat(filepath.Join(psLiteBuiltIn(t), "sums-"+v.name)); v == thread && err != nil {
				t.Skip("ThreadSanitizer has to see ZeroMQ, too: make pslite PSLITE=DIR ZMQ=DIR runs this")
			}
			b := newPSLiteBed(t, 1)
			j := b.startPSLiteOf(v, "hot", []int{0, 0}, []int{0, 0})
			for _, w := range j.workers {
				j.awaitLines(w, 10)
			}
			t.Logf("%d pushes", j.finish())
		})
	}
}
