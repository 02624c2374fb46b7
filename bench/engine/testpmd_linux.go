// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/libra-ina/libra/bench/child"
	"github.com/libra-ina/libra/internal/linux/proc"
	"github.com/libra-ina/libra/internal/linux/sys"
	"github.com/libra-ina/libra/internal/report/experiment"
)

// testpmd is DPDK's test program, driven through its command line. Its forwarding thread
// runs on the tested CPU, the thread that reads commands on the other.
type testpmd struct {
	group   *proc.Group
	process *proc.Child
	stdin   io.Writer
	lines   chan string

	at    [2]sys.Usage
	drops [2]map[string]uint64
}

// testpmdModes are the forwarding modes that correspond to the tests.
var testpmdModes = map[Test]string{Transmit: "txonly", Receive: "rxonly", Echo: "macswap"}

const testpmdCommand = "dpdk-testpmd"

// installTestpmd says how to get testpmd with the driver. Debian 12's DPDK comes without.
const installTestpmd = "scripts/dpdk.sh builds and installs it on Debian; elsewhere build DPDK with libxdp-dev installed (meson setup -Denable_drivers=net/af_xdp,mempool/ring,bus/vdev -Denable_apps=test-pmd) " +
	"and put dpdk-testpmd in the PATH"

// testpmdArgs returns testpmd's arguments. There need not be huge pages.
func testpmdArgs(b *bed, test Test, size int) []string {
	device := fmt.Sprintf("net_af_xdp0,iface=%s,start_queue=0,queue_count=1", b.testedHost().Interface)
	return []string{
		fmt.Sprintf("--lcores=0@%d,1@%d", b.cfg.CPUs[1], b.cfg.CPUs[0]),
		"--no-huge", "-m", "256", "--no-pci", "--no-telemetry", "--no-shconf", "--vdev=" + device,
		"--", "--interactive", "--nb-cores=1", "--total-num-mbufs=8192", "--no-lsc-interrupt",
		"--burst=" + strconv.Itoa(batch),
		"--txd=" + strconv.Itoa(ringSize), "--rxd=" + strconv.Itoa(ringSize),
		"--forward-mode=" + testpmdModes[test], "--txpkts=" + strconv.Itoa(size),
		fmt.Sprintf("--tx-ip=%v,%v", b.tested.IP, b.opposite.IP), fmt.Sprintf("--tx-udp=%d,%d", testPort, testPort),
		fmt.Sprintf("--eth-peer=0,%v", net.HardwareAddr(b.opposite.MAC[:])),
	}
}

// testpmdScript runs testpmd in a mount namespace of its own. DPDK insists on a
// directory in /run, which goes with the namespace. Without stdbuf, the
// output would stay in testpmd's buffer until that is full.
const testpmdScript = `mount -t tmpfs tmpfs /run && exec stdbuf -oL "$0" "$@"`

func startTestpmd(ctx context.Context, b *bed, _ string, test Test, size int) (process, error) {
	cmd := exec.Command("sh", append([]string{"-c", testpmdScript, testpmdCommand}, testpmdArgs(b, test, size)...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	t := &testpmd{
		group: proc.NewGroup(ctx, proc.Config{Grace: child.EndLimit}), stdin: stdin, lines: make(chan string, 256),
	}
	t.process, err = t.group.Start(proc.Spec{Name: testpmdCommand, Cmd: cmd, Start: b.testedHost().Start,
		OnLine: func(l []byte) {
			select {
			case t.lines <- string(l):
			default: // beyond what is waited for
			}
		}})
	if err == nil {
		err = t.setForwarding(test)
	}
	if err != nil {
		t.killProcess()
		return nil, err
	}
	return t, nil
}

// setForwarding waits for the prompt and starts forwarding. In an echo it first sends the
// frames that are to circulate.
func (t *testpmd) setForwarding(test Test) error {
	if _, err := t.awaitLine("Done"); err != nil {
		return err
	}
	if test == Echo {
		return t.writeCommand("start tx_first %d", window/batch)
	}
	return t.writeCommand("start")
}

func (t *testpmd) writeCommand(format string, args ...any) error {
	if _, err := fmt.Fprintf(t.stdin, format+"\n", args...); err != nil {
		return fmt.Errorf("engine: command testpmd: %w", err)
	}
	return nil
}

// awaitLine returns the next line of output that contains the text.
func (t *testpmd) awaitLine(text string) (string, error) {
	limit := time.NewTimer(child.ReadyLimit)
	defer limit.Stop()
	for {
		select {
		case line := <-t.lines:
			if strings.Contains(line, text) {
				return line, nil
			}
		case <-t.process.Done():
			return "", fmt.Errorf("engine: testpmd ended before it printed %q: %w", text, t.process.Wait(context.Background()))
		case <-limit.C:
			return "", fmt.Errorf("engine: testpmd did not print %q within %v", text, child.ReadyLimit)
		}
	}
}

func (t *testpmd) readStats() (map[string]uint64, error) {
	if err := t.writeCommand("show port stats 0"); err != nil {
		return nil, err
	}
	counters := map[string]uint64{}
	for _, row := range []string{"RX-packets:", "RX-errors:", "RX-nombuf:", "TX-packets:"} {
		line, err := t.awaitLine(row)
		if err != nil {
			return nil, err
		}
		fields := strings.Fields(line)
		for i := 0; i+1 < len(fields); i++ {
			if n, err := strconv.ParseUint(fields[i+1], 10, 64); err == nil {
				counters[strings.TrimSuffix(fields[i], ":")] = n
			}
		}
	}
	return counters, nil
}

func (t *testpmd) countReceived() (uint64, error) {
	counters, err := t.readStats()
	return counters["RX-packets"], err
}

// enterPhase notes CPU time and drops at a limit of the measurement.
func (t *testpmd) enterPhase(phase uint32) error {
	usage, err := sys.ProcessUsage(t.process.Pid())
	if err != nil {
		return err
	}
	counters, err := t.readStats()
	i := phase - phaseMeasure
	t.at[i], t.drops[i] = usage, map[string]uint64{
		"socket: RX missed": counters["RX-missed"], "socket: RX errors": counters["RX-errors"],
		"socket: no buffer": counters["RX-nombuf"], "socket: TX errors": counters["TX-errors"],
	}
	return err
}

func (t *testpmd) finishTest(ctx context.Context) (n notes, err error) {
	if err := errors.Join(t.writeCommand("stop"), t.writeCommand("quit")); err != nil {
		return n, err
	}
	ctx, cancel := child.WithEndLimit(ctx)
	defer cancel()
	if err := t.process.Wait(ctx); err != nil {
		return n, err
	}
	n.cpu = t.at[1].Since(t.at[0])
	n.drops = experiment.Difference(t.drops[0], t.drops[1])
	return n, t.group.Wait()
}

func (t *testpmd) processID() int { return t.process.Pid() }

// killProcess ends the process at once; its errors are those of a process that is ended by force.
func (t *testpmd) killProcess() { _ = t.group.Stop() }
