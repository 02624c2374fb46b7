// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"errors"
	"math"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"

	"github.com/libra-ina/libra/afxdp"
	"github.com/libra-ina/libra/internal/linux/testbed"
	"github.com/libra-ina/libra/internal/report/experiment"
)

// cable makes a veth pair, "near" and "far", in a namespace. Near has the address 10.9.0.1/24.
func cable(t *testing.T) *testbed.Namespace {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root to create network namespaces")
	}
	ns, err := testbed.NewNamespace()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ns.Close() })
	if err := ns.Veth(testbed.VethConfig{Names: [2]string{"near", "far"}, Queues: 2}); err != nil {
		t.Fatal(err)
	}
	err = ns.Do(func() error {
		l, err := netlink.LinkByName("near")
		if err != nil {
			return err
		}
		a, err := netlink.ParseAddr("10.9.0.1/24")
		return errors.Join(err, netlink.AddrAdd(l, a))
	})
	if err != nil {
		t.Fatal(err)
	}
	return ns
}

// state is what a measurement must leave as it was.
type state struct {
	program          uint32
	attached         bool
	mtu, promiscuous int
	up               bool
	addresses        int
	rx, tx           int
}

func stateOf(t *testing.T, ns *testbed.Namespace, name string) (s state) {
	t.Helper()
	err := ns.Do(func() error {
		l, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		at := l.Attrs()
		if at.Xdp != nil {
			s.program, s.attached = at.Xdp.ProgId, at.Xdp.Attached
		}
		s.mtu, s.promiscuous, s.up = at.MTU, at.Promisc, at.OperState == netlink.OperUp
		addresses, err := netlink.AddrList(l, netlink.FAMILY_V4)
		if err != nil {
			return err
		}
		s.addresses = len(addresses)
		s.rx, s.tx, err = afxdp.QueueCounts(name)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func runInterface(ctx context.Context, ns *testbed.Namespace, cfg InterfaceConfig) (report *Report, err error) {
	do := ns.Do(func() error {
		report, err = RunInterface(ctx, cfg)
		return nil
	})
	return report, errors.Join(err, do)
}

func interfaceConfig(name string, tests ...Test) InterfaceConfig {
	c := InterfaceDefaults()
	c.Interface, c.Tests, c.Sizes, c.Rounds = name, tests, []int{190}, 2
	c.Duration, c.WarmUp = 100*time.Millisecond, 50*time.Millisecond
	return c
}

// Two ends of a cable measure with each other: each test moves frames, and both ends are
// left as they were.
func TestInterface(t *testing.T) {
	ns := cable(t)
	before := [2]state{stateOf(t, ns, "near"), stateOf(t, ns, "far")}
	var far string
	if err := ns.Do(func() error {
		l, err := netlink.LinkByName("far")
		if err == nil {
			far = l.Attrs().HardwareAddr.String()
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name       string
		near, far  Test
		rate, most float64
	}{
		{"transmit to receive", Transmit, Receive, 0, math.Inf(1)},
		{"at a rate", Transmit, Receive, 2000, 2600},
		{"request-response", RequestResponse, Forward, 0, math.Inf(1)},
		{"requests at a rate", RequestResponse, Forward, 100, 130},
	} {
		t.Run(c.name, func(t *testing.T) {
			farConfig, nearConfig := interfaceConfig("far", c.far), interfaceConfig("near", c.near)
			nearConfig.Peer, nearConfig.Pace = far, c.rate
			farConfig.Duration = 200 * time.Millisecond
			nearConfig.Rounds, farConfig.Rounds = 3, 1
			// The far end goes on for as long as the near one measures.
			if c.far == Forward {
				farConfig.Rounds = 1000
			}
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			type outcome struct {
				report *Report
				err    error
			}
			ends := make(chan outcome, 1)
			go func() {
				r, err := runInterface(ctx, ns, farConfig)
				ends <- outcome{r, err}
			}()
			var got *Report
			for end := time.Now().Add(eventLimit); ; {
				r, err := runInterface(t.Context(), ns, nearConfig)
				if err != nil {
					t.Fatal(err)
				}
				got = r
				if c.far == Forward {
					stop()
				}
				select {
				case e := <-ends:
					switch {
					case c.far == Forward:
						if !errors.Is(e.err, context.Canceled) {
							t.Error(e.err)
						}
					case e.err != nil:
						t.Fatal(e.err)
					default:
						checkInterfaceResult(t, e.report, c.far, 1)
						if size := e.report.Results[0].Size; size != 190 {
							t.Errorf("frames of %d bytes came, of 190 were sent", size)
						}
					}
				default:
					if c.far != Forward && time.Now().Before(end) {
						continue // the far end still opens its sockets
					}
					if e := <-ends; c.far != Forward || !errors.Is(e.err, context.Canceled) {
						t.Error(e.err)
					}
				}
				break
			}
			checkInterfaceResult(t, got, c.near, 3)
			if rate := got.Results[0].PPS; rate > c.most {
				t.Errorf("%v frames a second, %v is the limit", rate, c.rate)
			}
			if at := got.Interface; at.Name != "near" || at.Driver != "veth" || at.ZeroCopy || at.Peer != far || len(at.Queues) != 2 {
				t.Errorf("%+v", at)
			}
		})
	}
	if diff := cmp.Diff(before, [2]state{stateOf(t, ns, "near"), stateOf(t, ns, "far")}, cmp.AllowUnexported(state{})); diff != "" {
		t.Errorf("the interfaces (-before +after):\n%s", diff)
	}
}

func checkInterfaceResult(t *testing.T, r *Report, test Test, rounds int) {
	t.Helper()
	if len(r.Results) != 1 || r.Results[0].Test != test || len(r.Results[0].Samples) != rounds || r.Results[0].PPS <= 0 {
		t.Fatalf("%s: %+v", test, r.Results)
	}
	res := r.Results[0]
	inBuckets := uint64(0)
	for _, b := range res.RoundTrip {
		inBuckets += b.Count
	}
	if timed := res.P50ns != nil && *res.P50ns > 0 && *res.P99ns >= *res.P50ns && inBuckets > 0; timed != (test == RequestResponse) {
		t.Errorf("%s: round-trip times %v, %v, %v", test, res.P50ns, res.P99ns, res.RoundTrip)
	}
}

// What cannot be measured is refused before a frame is sent, with what to do.
func TestInterfaceRefusals(t *testing.T) {
	ns := cable(t)
	for name, c := range map[string]struct {
		change func(*InterfaceConfig)
		field  string
		words  string
	}{
		"no interface":      {func(c *InterfaceConfig) { c.Interface = "" }, "interface", "empty"},
		"unknown":           {func(c *InterfaceConfig) { c.Interface = "nosuch" }, "interface", "cannot be found"},
		"loopback":          {func(c *InterfaceConfig) { c.Interface = "lo" }, "interface", "not an Ethernet interface"},
		"no peer":           {func(c *InterfaceConfig) { c.Peer = "" }, "peer", "to which address"},
		"peer no address":   {func(c *InterfaceConfig) { c.Peer = "far" }, "peer", "neither"},
		"peer broadcast":    {func(c *InterfaceConfig) { c.Peer = "ff:ff:ff:ff:ff:ff" }, "peer", "one other card"},
		"peer multicast":    {func(c *InterfaceConfig) { c.Peer = "224.0.0.1" }, "peer", "another machine"},
		"peer of IPv6":      {func(c *InterfaceConfig) { c.Peer = "fd00::1" }, "peer", "IPv4"},
		"test of the bed":   {func(c *InterfaceConfig) { c.Tests = []Test{Push} }, "measure", "none of"},
		"jumbo":             {func(c *InterfaceConfig) { c.Sizes = []int{1515} }, "sizes", "1514"},
		"rate":              {func(c *InterfaceConfig) { c.Pace = math.NaN() }, "pace", "NaN"},
		"larger than MTU":   {func(c *InterfaceConfig) { c.Interface = "far"; c.Sizes = []int{1500} }, "sizes", "MTU of far is 1400"},
		"the default route": {func(c *InterfaceConfig) {}, "interface", "--force"},
		"through a gateway": {func(c *InterfaceConfig) { c.Force, c.Peer = true, "192.0.2.1" }, "peer", "behind the gateway 10.9.0.2"},
	} {
		err := ns.Do(func() error {
			near, err := netlink.LinkByName("near")
			if err != nil {
				return err
			}
			far, err := netlink.LinkByName("far")
			if err != nil {
				return err
			}
			gateway := netlink.Route{LinkIndex: near.Attrs().Index, Gw: []byte{10, 9, 0, 2}}
			return errors.Join(netlink.RouteReplace(&gateway), netlink.LinkSetMTU(far, 1400),
				netlink.NeighSet(&netlink.Neigh{LinkIndex: near.Attrs().Index, State: netlink.NUD_PERMANENT, IP: []byte{10, 9, 0, 2}, HardwareAddr: far.Attrs().HardwareAddr}))
		})
		if err != nil {
			t.Fatal(err)
		}
		cfg := interfaceConfig("near", Transmit)
		cfg.Peer = "02:00:00:00:00:09"
		c.change(&cfg)
		_, err = runInterface(t.Context(), ns, cfg)
		var wrong *experiment.ConfigError
		if !errors.As(err, &wrong) || wrong.Field != c.field || !strings.Contains(err.Error(), c.words) {
			t.Errorf("%s: %v, want one about %s with %q", name, err, c.field, c.words)
		}
	}
	cfg := interfaceConfig("near", Receive)
	cfg.Force, cfg.Queues = true, []int{0, 2}
	if _, err := runInterface(t.Context(), ns, cfg); !errors.Is(err, afxdp.ErrNoQueue) {
		t.Errorf("a queue beyond the card: %v", err)
	}
	if got := stateOf(t, ns, "near"); got.attached {
		t.Errorf("left behind: %+v", got)
	}
}

// An interface without a link is refused at once, whichever end is down, and left as it was.
func TestInterfaceWithoutALink(t *testing.T) {
	ns := cable(t)
	for _, down := range []string{"far", "near"} {
		if err := ns.SetUp(down, false); err != nil {
			t.Fatal(err)
		}
		before := awaitState(t, ns, "near", func(s state) bool { return !s.up })
		for _, test := range []Test{Transmit, Receive, Forward} {
			cfg := interfaceConfig("near", test)
			cfg.Peer, cfg.Force = "02:00:00:00:00:09", true
			ctx, cancel := context.WithTimeout(t.Context(), eventLimit)
			_, err := runInterface(ctx, ns, cfg)
			cancel()
			var wrong *experiment.ConfigError
			if !errors.As(err, &wrong) || wrong.Field != "interface" || !strings.Contains(err.Error(), "near has no link (it is ") || !strings.Contains(err.Error(), "ip link set near up") {
				t.Errorf("%s down, %s: %v", down, test, err)
			}
		}
		if diff := cmp.Diff(before, stateOf(t, ns, "near"), cmp.AllowUnexported(state{})); diff != "" {
			t.Errorf("%s down (-before +after):\n%s", down, diff)
		}
		if err := ns.SetUp(down, true); err != nil {
			t.Fatal(err)
		}
		awaitState(t, ns, "near", func(s state) bool { return s.up })
	}
}

func awaitState(t *testing.T, ns *testbed.Namespace, name string, is func(state) bool) state {
	t.Helper()
	for end := time.Now().Add(eventLimit); ; time.Sleep(5 * time.Millisecond) {
		s := stateOf(t, ns, name)
		if is(s) {
			return s
		}
		if time.Now().After(end) {
			t.Fatalf("%s is %+v", name, s)
		}
	}
}

// A measurement to which nothing comes tells what it waited for.
func TestInterfaceOfSilence(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for seconds")
	}
	for test, words := range map[Test]string{
		Receive: "has to send UDP packets to port 9119", RequestResponse: "--measure forward",
	} {
		t.Run(string(test), func(t *testing.T) {
			t.Parallel() // each waits for as long as nothing may move
			ns := cable(t)
			cfg := interfaceConfig("near", test)
			cfg.Peer = "02:00:00:00:00:09"
			if _, err := runInterface(t.Context(), ns, cfg); err == nil || !strings.Contains(err.Error(), words) {
				t.Errorf("%v, want %q", err, words)
			}
		})
	}
}

func TestHistogram(t *testing.T) {
	for name, c := range map[string]struct {
		times []uint32
		want  []Bucket
	}{
		"none":         {nil, nil},
		"smallest":     {[]uint32{0}, []Bucket{{1000, 1}}},
		"limits":       {[]uint32{2001, 1000, 2000, 1001}, []Bucket{{1000, 1}, {2000, 2}, {5000, 1}}},
		"gap":          {[]uint32{3000, 40_000}, []Bucket{{5000, 1}, {10_000, 0}, {20_000, 0}, {50_000, 1}}},
		"series":       {[]uint32{99_000, 150_000, 450_000, 900_000}, []Bucket{{100_000, 1}, {200_000, 1}, {500_000, 1}, {1_000_000, 1}}},
		"the greatest": {[]uint32{math.MaxUint32}, []Bucket{{5_000_000_000, 1}}},
	} {
		if diff := cmp.Diff(c.want, histogram(c.times)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}
