package push

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/link"
)

// Commands that the harness writes to a peer's standard input, a line each. The
// end of the input means the same as stop.
const (
	commandStart = "start" // workers begin to push
	commandMark  = "mark"  // the peer answers with a mark
	commandStop  = "stop"  // a worker waits for what is in flight; a server stores its sums; then they end
)

// mark is what a peer knows of itself at a moment. It is the JSON object of a line of
// the peer's standard output.
type mark struct {
	At     int64  `json:"at_ns"`     // CLOCK_MONOTONIC
	Pushes uint64 `json:"pushes"`    // acknowledged so far; 0 of a server
	User   uint64 `json:"user_ns"`   // CPU time of the process so far
	Kernel uint64 `json:"kernel_ns"` // CPU time of the process so far, in the kernel
	// Last is true in the mark that a peer writes before it ends.
	Last bool `json:"last"`
}

// now returns a mark without pushes.
func now() (mark, error) {
	var ts unix.Timespec
	var r unix.Rusage
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return mark{}, os.NewSyscallError("clock_gettime", err)
	}
	if err := unix.Getrusage(unix.RUSAGE_SELF, &r); err != nil {
		return mark{}, os.NewSyscallError("getrusage", err)
	}
	return mark{At: ts.Nano(), User: uint64(r.Utime.Nano()), Kernel: uint64(r.Stime.Nano())}, nil
}

// orders are the commands of the harness as a peer sees them.
type orders struct {
	started chan struct{}
	stopped chan struct{}

	mu  sync.Mutex // one line at a time
	out *json.Encoder
}

// follow reads commands until the input ends. pushes returns the number of pushes
// that are acknowledged.
func follow(pushes func() uint64) *orders {
	o := &orders{started: make(chan struct{}), stopped: make(chan struct{}), out: json.NewEncoder(os.Stdout)}
	go func() {
		start, stop := sync.OnceFunc(func() { close(o.started) }), sync.OnceFunc(func() { close(o.stopped) })
		defer start()
		defer stop()
		for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
			switch lines.Text() {
			case commandStart:
				start()
			case commandMark:
				if o.mark(pushes(), false) != nil {
					return // nobody reads: the harness is gone
				}
			case commandStop:
				stop()
			}
		}
	}()
	return o
}

func (o *orders) mark(pushes uint64, last bool) error {
	m, err := now()
	if err != nil {
		return err
	}
	m.Pushes, m.Last = pushes, last
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.out.Encode(m)
}

// stopping reports whether the harness said stop.
func (o *orders) stopping() bool {
	select {
	case <-o.stopped:
		return true
	default:
		return false
	}
}

// Roles of Libra's processes.
const (
	roleServer = "server"
	roleWorker = "worker"
)

// peerConfig is what a process of Libra is told, as JSON.
type peerConfig struct {
	Role       string
	CPU        int
	Interface  string
	Local      netip.AddrPort // of the process's endpoint
	Aggregator netip.AddrPort
	Control    netip.AddrPort // the aggregator's control service
	Workers    int

	// Of a server.
	FirstWorker netip.Addr    // address of worker 0; worker i has the address after worker i-1's
	Harvest     time.Duration // between two harvests

	// Of a worker.
	Worker int // number, from 0 on; its sender id is one more
	Batch  int // pairs in a push
	Server netip.AddrPort
}

// openLink opens the link of the process. If processes have to share CPUs it does not
// spin: what it would wait for may well wait for the CPU.
func (c *peerConfig) openLink() (link.Link, error) {
	spin := link.DefaultSpin
	if c.Workers+1 > runtime.NumCPU() {
		spin = -1
	}
	return link.OpenAFXDP(link.AFXDPConfig{Interface: c.Interface, Local: c.Local, Spin: spin})
}

// RunPeer is a process of PeerLibra: Run starts it with one argument after
// Config.PeerCommand, on a host of the test bed. It is of no use by itself.
func RunPeer(args []string) error {
	var c peerConfig
	if len(args) != 1 || json.Unmarshal([]byte(args[0]), &c) != nil {
		return errors.New("push: this command is for 'libra bench push' to call")
	}
	err := pinProcess(c.CPU)
	if err == nil {
		switch c.Role {
		case roleServer:
			err = c.serve()
		case roleWorker:
			err = c.work()
		default:
			err = fmt.Errorf("no role %q", c.Role)
		}
	}
	if err != nil {
		return fmt.Errorf("push: %s: %w", c.Role, err)
	}
	return nil
}

// pinProcess moves all threads of the process to a CPU. Threads that the runtime
// starts later inherit it.
func pinProcess(cpu int) error {
	if cpu < 0 {
		return nil
	}
	var set unix.CPUSet
	set.Set(cpu)
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return err
	}
	for _, task := range tasks {
		tid, err := strconv.Atoi(task.Name())
		if err != nil {
			return err
		}
		if err := unix.SchedSetaffinity(tid, &set); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("pin to CPU %d: %w", cpu, os.NewSyscallError("sched_setaffinity", err))
		}
	}
	return nil
}
