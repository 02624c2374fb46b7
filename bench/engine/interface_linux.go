// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/libra-ina/libra/afxdp"
	"github.com/libra-ina/libra/internal/linux/neigh"
	"github.com/libra-ina/libra/internal/linux/sys"
	"github.com/libra-ina/libra/internal/report/experiment"
	"github.com/libra-ina/libra/wire"
)

// RunInterface measures package afxdp on an interface of the calling thread's network
// namespace, with a socket on each queue. Frames go to, and are taken from, UDP port 9119;
// all others go on to the kernel. The interface is left as it was. When ctx is done it
// returns what it has and the cause.
func RunInterface(ctx context.Context, cfg InterfaceConfig) (*Report, error) {
	if err := cfg.checkFields(); err != nil {
		return nil, err
	}
	// The link is looked at again while it is measured.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	r := &interfaceRun{cfg: cfg, progress: experiment.ProgressCounter{Progress: cfg.Progress}, report: &Report{
		Machine: machine(), Interface: &Interface{Name: cfg.Interface, Pace: cfg.Pace}, Rounds: cfg.Rounds,
		Duration: cfg.Duration,
	}}
	if err := r.lookAtInterface(ctx); err != nil {
		return nil, fmt.Errorf("engine: %w", err)
	}
	if cfg.Sending != nil && cfg.sends() {
		cfg.Sending(*r.report.Interface)
	}
	for _, test := range cfg.Tests {
		r.progress.Total += len(r.frameSizes(test)) * cfg.Rounds
	}
	for _, test := range cfg.Tests {
		for _, size := range r.frameSizes(test) {
			if err := r.measureTest(ctx, test, size); err != nil {
				err = fmt.Errorf("engine: %s on %s: %w", test, cfg.Interface, err)
				if len(r.report.Results) == 0 {
					return nil, err
				}
				return r.report, err
			}
		}
	}
	return r.report, nil
}

type interfaceRun struct {
	cfg         InterfaceConfig
	index       int
	local, peer wire.Endpoint
	report      *Report
	progress    experiment.ProgressCounter
}

// frameSizes returns those of a test; what comes in has its own.
func (r *interfaceRun) frameSizes(test Test) []int {
	if test == Receive || test == Forward {
		return []int{0}
	}
	return r.cfg.Sizes
}

// lookAtInterface finds out whether the interface can be measured, and who is at the other end.
func (r *interfaceRun) lookAtInterface(ctx context.Context) error {
	refuse := func(format string, args ...any) error {
		return &experiment.ConfigError{Field: "interface", Problem: r.cfg.Interface + " " + fmt.Sprintf(format, args...)}
	}
	l, err := netlink.LinkByName(r.cfg.Interface)
	if err != nil {
		return refuse("cannot be found: %v", err)
	}
	at := l.Attrs()
	r.index = at.Index
	switch {
	case len(at.HardwareAddr) != 6 || at.EncapType != "ether":
		return refuse("is not an Ethernet interface")
	case at.OperState != netlink.OperUp:
		return refuse("has no link (it is %s): ip link set %s up, and look at the cable", at.OperState, r.cfg.Interface)
	case r.cfg.sends() && slices.Max(append(r.cfg.Sizes, 0)) > at.MTU+14:
		return &experiment.ConfigError{Field: "sizes",
			Problem: fmt.Sprintf("the MTU of %s is %d, so its frames have at most %d bytes", at.Name, at.MTU, at.MTU+14)}
	}
	if !r.cfg.Force {
		routes, err := netlink.RouteList(l, netlink.FAMILY_ALL)
		if err != nil {
			return fmt.Errorf("routes of %s: %w", at.Name, err)
		}
		if slices.ContainsFunc(routes, isDefault) {
			return refuse("leads to this machine's default gateway: measuring floods it, and may reset its link. Name an interface for measurements, or say --force")
		}
	}
	device, err := afxdp.QueryDevice(at.Name)
	if err != nil {
		return err
	}
	r.report.Interface.Driver = device.Driver
	r.local = wire.Endpoint{MAC: [6]byte(at.HardwareAddr), Port: testPort}
	r.peer.Port = testPort
	if !r.cfg.sends() {
		return nil
	}
	return r.findPeer(ctx)
}

func isDefault(r netlink.Route) bool {
	if r.Dst == nil {
		return true
	}
	ones, _ := r.Dst.Mask.Size()
	return ones == 0
}

// The addresses of frames to an Ethernet address: RFC 2544 sets them aside for benchmarks.
var benchmarkLocal, benchmarkPeer = netip.MustParseAddr("198.18.0.1"), netip.MustParseAddr("198.19.0.1")

func (r *interfaceRun) findPeer(ctx context.Context) error {
	ip, mac, err := r.cfg.peer()
	if err != nil {
		return err
	}
	if mac != nil {
		r.local.IP, r.peer.IP, r.peer.MAC = benchmarkLocal, benchmarkPeer, [6]byte(mac)
	} else {
		hop, err := neigh.Resolve(ctx, r.cfg.Interface, ip)
		if err != nil {
			return err
		}
		if hop.Next != ip {
			return &experiment.ConfigError{Field: "peer",
				Problem: fmt.Sprintf("%v is behind the gateway %v, which would be flooded; it has to be on the network of %s", ip,
					hop.Next, r.cfg.Interface)}
		}
		r.local.IP, r.peer.IP, r.peer.MAC = hop.Source, ip, hop.MAC
	}
	if r.peer.MAC == r.local.MAC {
		return &experiment.ConfigError{Field: "peer", Problem: r.cfg.Peer + " is " + r.cfg.Interface + " itself"}
	}
	r.report.Interface.Peer = net.HardwareAddr(r.peer.MAC[:]).String()
	return nil
}

func (r *interfaceRun) measureTest(ctx context.Context, test Test, size int) (err error) {
	work := &interfaceWork{pace: r.cfg.Pace}
	if size > 0 {
		if work.frame, err = buildFrame(r.local, r.peer, size); err != nil {
			return err
		}
	}
	group, err := r.openGroup(ctx, test)
	if err != nil {
		return err
	}
	running, stop := context.WithCancelCause(ctx)
	ended := make(chan error, 1)
	go func() {
		err := work.runTest(running, group, test)
		if err == nil {
			err = context.Canceled
		}
		stop(err) // ends a round that is being measured
		ended <- err
	}()
	samples, times, err := r.measureRounds(running, group, work, test, size)
	stop(nil)
	if failed := <-ended; failed != nil && !errors.Is(failed, context.Canceled) && !errors.Is(err, failed) {
		err = errors.Join(err, failed)
	}
	if err = errors.Join(err, group.Close()); err != nil {
		return err
	}
	if size == 0 {
		size = work.meanSize()
	}
	result := newResult(test, size, Libra, samples)
	result.RoundTrip = histogram(times)
	r.report.Results = append(r.report.Results, result)
	return nil
}

// openGroup opens a socket on each queue, and waits for the link, which drivers reset for that.
func (r *interfaceRun) openGroup(ctx context.Context, test Test) (_ *afxdp.Group, err error) {
	cfg := afxdp.GroupConfig{Queues: r.cfg.Queues, Socket: socketConfig}
	cfg.Socket.MaxPacket = maxPlain
	if test == Transmit {
		cfg.Socket.RxFrames = -1
	} else {
		cfg.Match = afxdp.MatchUDP(testPort)
	}
	group, err := afxdp.OpenAll(r.cfg.Interface, cfg)
	if err != nil {
		return nil, err
	}
	at := r.report.Interface
	at.Queues, at.ZeroCopy = nil, true
	for _, s := range group.Sockets() {
		info := s.Info()
		at.Queues, at.ZeroCopy = append(at.Queues, info.Queue), at.ZeroCopy && info.ZeroCopy
	}
	if err := r.awaitLink(ctx); err != nil {
		return nil, errors.Join(err, group.Close())
	}
	return group, nil
}

// linkLimit is how long a card may take to have its link again.
const linkLimit = 15 * time.Second

func (r *interfaceRun) awaitLink(ctx context.Context) error {
	for end := time.Now().Add(linkLimit); ; {
		l, err := netlink.LinkByIndex(r.index)
		if err != nil {
			return fmt.Errorf("link: %w", err)
		}
		if l.Attrs().OperState == netlink.OperUp {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("the link does not come up within %v of opening the sockets", linkLimit)
		}
		if err := experiment.Sleep(ctx, 10*time.Millisecond); err != nil {
			return err
		}
	}
}

// measureRounds measures the rounds of a test, and returns their samples and all round-trip times.
func (r *interfaceRun) measureRounds(ctx context.Context, group *afxdp.Group, work *interfaceWork, test Test,
	size int) (samples []Sample, times []uint32, err error) {
	read := func() (m reading, err error) {
		if m.lost, m.frames, err = work.readCounters(group, test); err != nil {
			return m, err
		}
		m.cpu, err = sys.OwnUsage()
		m.at = time.Now()
		return m, err
	}
	what := fmt.Sprintf("%s on %s", test, r.cfg.Interface)
	if size > 0 {
		what += fmt.Sprintf(", %d bytes", size)
	}
	warm := r.cfg.WarmUp
	for range r.cfg.Rounds {
		r.progress.Next(what)
		if err := experiment.Sleep(ctx, warm); err != nil {
			return nil, nil, err
		}
		warm = 0
		work.takeTimes() // of what was before
		before, after, err := experiment.Window(ctx, r.cfg.Duration, read, func(before, after reading) bool {
			return after.frames != before.frames
		})
		if err != nil {
			return nil, nil, explainSilence(err, test)
		}
		round := notes{cpu: after.cpu.Since(before.cpu), roundTrip: work.takeTimes()}
		var t tally
		t.addSlice(before, before, after, after)
		samples, times = append(samples, t.sampleOf(round)), append(times, round.roundTrip...)
	}
	return samples, times, nil
}

// explainSilence says what a test waits for.
func explainSilence(err error, test Test) error {
	switch {
	case errors.Is(err, context.Canceled):
		return err
	case test == Receive, test == Forward:
		return fmt.Errorf("%w: the other machine has to send UDP packets to port %d (libra bench engine --interface NAME --peer ADDRESS there)", err, testPort)
	case test == RequestResponse:
		return fmt.Errorf("%w: the other machine has to send them back (libra bench engine --interface NAME --measure forward there)", err)
	}
	return err
}
