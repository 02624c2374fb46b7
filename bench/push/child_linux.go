package push

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/bench/child"
	"github.com/libra-ina/libra/bench/harness"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/wire"
)

// Requests to the processes of all baselines. Each is answered with a mark.
const (
	opStart = "start" // workers begin to push
	opMark  = "mark"
	opStop  = "stop" // a worker waits for what is in flight; a server stores its sums
)

// mark is the state of a process at a moment.
type mark struct {
	At     int64  `json:"at_ns"`     // CLOCK_MONOTONIC
	Pushes uint64 `json:"pushes"`    // acknowledged so far; 0 of a server
	User   uint64 `json:"user_ns"`   // CPU time of the process so far
	Kernel uint64 `json:"kernel_ns"` // CPU time of the process so far, in the kernel
}

// ownMark returns the calling process's mark.
func ownMark(pushes uint64) (mark, error) {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return mark{}, os.NewSyscallError("clock_gettime", err)
	}
	u, err := harness.OwnUsage()
	return mark{At: ts.Nano(), Pushes: pushes, User: u.User, Kernel: u.Kernel}, err
}

// Descriptors under which processes find the shared memory.
const (
	workloadFD = 3
	sumsFD     = 4 // servers only
)

// childConfig is what a process of Libra is told.
type childConfig struct {
	harness.Place
	Server *serverConfig `json:",omitempty"`
	Worker *workerConfig `json:",omitempty"`
}

type serverConfig struct {
	Workers []netip.AddrPort // by number
	Harvest time.Duration    // between two harvests
}

type workerConfig struct {
	Number int // from 0 on; the sender id is one more
	Batch  int // pairs in a push
	Server wire.Endpoint
}

// RunChild is a process of Libra, on a host of the test bed. It is of no use by
// itself.
func RunChild(args []string) error {
	return child.Main(args, func(ctx context.Context, c childConfig) (err error) {
		switch {
		case c.Server != nil:
			err = c.serve(ctx)
		case c.Worker != nil:
			err = c.work(ctx)
		}
		if err != nil {
			return fmt.Errorf("push: %w", err)
		}
		return nil
	})
}

// answer serves requests until ctx ends or the process is told to end. start and
// stop do what the requests ask for.
func answer(ctx context.Context, pushes func() uint64, start func(), stop func(context.Context) error) error {
	return child.Serve(ctx, func(ctx context.Context, op string, _ json.RawMessage) (any, error) {
		switch op {
		case opStart:
			start()
		case opMark:
		case opStop:
			if err := stop(ctx); err != nil {
				return nil, err
			}
		default:
			return nil, child.Unknown(op)
		}
		return ownMark(pushes())
	})
}

// openKeys maps the keys of the workload, the hottest first.
func openKeys() ([]uint64, error) {
	mem, err := harness.MapShared(workloadFD, 0, 8*Keys, unix.PROT_READ)
	return view[uint64](mem), err
}

// hotSet makes the hot set of ranked keys.
func hotSet(ranked []uint64) (*packer.HotSet, error) {
	return packer.NewHotSet(1, ranked[:HotKeys], nil, packer.Meta{})
}
