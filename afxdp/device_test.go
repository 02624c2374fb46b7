// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp

import (
	"errors"
	"net"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/internal/linux/testbed"
	"github.com/libra-ina/libra/internal/test/refuse"
)

// veth has the features of the driver of the tests' interfaces; kernels before 6.3 do not report
// them.
func veth(known bool) Device {
	d := Device{Driver: "veth", Clock: -1}
	if known {
		d.Known, d.Native, d.MultiBuffer, d.RxTimestamp, d.RxHash, d.RxVLAN = true, true, true, true, true, true
	}
	return d
}

func TestDevice(t *testing.T) {
	ns := newNet(t, testbed.VethConfig{})
	s := open(t, ns, newPool(t, newUMEM(t, UMEMConfig{}), 0), Config{Interface: "a"})
	err := ns.Do(func() error {
		d, err := QueryDevice("a")
		if diff := cmp.Diff(veth(d.Known), d); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(d, s.Info().Device); diff != "" {
			t.Errorf("of the socket (-query +info):\n%s", diff)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	// Drivers that report nothing, and calls that fail.
	for name, c := range map[string]struct {
		ifname string
		call   refuse.Call
		want   error
		words  string
	}{
		"driver tells nothing": {"a", refuse.Call{Number: unix.SYS_IOCTL, Err: unix.EOPNOTSUPP}, nil, ""},
		"no socket":            {"a", socketOf(unix.AF_INET, unix.EDOM), unix.EDOM, "afxdp: driver of a: socket: "},
		"gone":                 {"nosuch", refuse.Call{}, ErrInterfaceGone, `"nosuch"`},
	} {
		calls := []refuse.Call{c.call}
		if c.call.Err == 0 {
			calls = nil
		}
		refused(t, ns, name, c.want, c.words, func() error {
			d, err := QueryDevice(c.ifname)
			if d.Driver != "" {
				t.Errorf("%s: driver %q", name, d.Driver)
			}
			return err
		}, calls...)
	}
	refused(t, ns, "no netlink", unix.EDOM, "netdev", func() error {
		_, err := queryDevice(&net.Interface{Index: 1, Name: "lo"})
		return err
	}, socketOf(unix.AF_NETLINK, unix.EDOM))
	// A socket works without knowing the features.
	refused(t, ns, "no driver", nil, "", func() error {
		i := Info{Interface: "a"}
		i.describe(&net.Interface{Index: 1, Name: "lo"})
		if i.Device.Known || i.NAPI != 0 {
			t.Errorf("%+v", i)
		}
		return nil
	}, socketOf(unix.AF_NETLINK, unix.EDOM))
}

// Requests that a device would ignore are refused, by name and with a remedy, and the caller keeps
// the frame.
func TestRequestsThatTheDeviceLacks(t *testing.T) {
	defer func(old func() string) { kernelRelease = old }(kernelRelease)
	kernelRelease = func() string { return "6.12.30" }
	all := Device{Driver: "igc", Known: true, ZeroCopy: true, TxTimestamp: true, TxChecksum: true, TxLaunchTime: true}
	without := func(change func(*Device)) Device { d := all; change(&d); return d }
	for name, c := range map[string]struct {
		device   Device
		zeroCopy bool
		request  func(TxMeta)
		words    string // "" if it is sent
	}{
		"launch time":          {all, true, func(m TxMeta) { m.RequestLaunchTime(1) }, ""},
		"no launch time":       {without(func(d *Device) { d.TxLaunchTime = false }), true, func(m TxMeta) { m.RequestLaunchTime(1) }, "launch time on eth7 needs Linux 6.14 or later and a driver that has it, which the driver igc lacks; wait"},
		"no launch time, copy": {without(func(d *Device) { d.TxLaunchTime = false }), false, func(m TxMeta) { m.RequestLaunchTime(1) }, "launch time"},
		"no timestamp":         {without(func(d *Device) { d.TxTimestamp = false }), true, func(m TxMeta) { m.RequestTimestamp() }, "timestamps in zero-copy mode on eth7 needs a driver that has it, which the driver igc lacks; take"},
		"timestamp, copy":      {without(func(d *Device) { d.TxTimestamp = false }), false, func(m TxMeta) { m.RequestTimestamp() }, ""},
		"no checksum":          {without(func(d *Device) { d.TxChecksum, d.Driver = false, "" }), true, func(m TxMeta) { m.RequestChecksum(34, 6) }, "which the driver lacks; compute"},
		"checksum, copy":       {without(func(d *Device) { d.TxChecksum = false }), false, func(m TxMeta) { m.RequestChecksum(34, 6) }, ""},
		"nothing asked for":    {Device{Known: true}, true, func(TxMeta) {}, ""},
		"not known":            {Device{}, true, func(m TxMeta) { m.RequestLaunchTime(1) }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s, _ := newSim(t, simConfig{frames: 4, ring: 4, txMeta: true})
			s.info.Store(&Info{Interface: "eth7", ZeroCopy: c.zeroCopy, Device: c.device})
			f, _ := s.Pool().Alloc()
			d := Desc{Frame: f, Off: 64, Len: 100, Flags: WithTxMeta}
			m := s.UMEM().TxMeta(d)
			m.Reset()
			c.request(m)
			n, err := s.Send([]Desc{d})
			if c.words == "" {
				if n != 1 || err != nil {
					t.Errorf("sent %d, %v", n, err)
				}
				return
			}
			var feature *FeatureError
			if n != 0 || !errors.As(err, &feature) || feature.Remedy == "" || !strings.Contains(err.Error(), c.words) {
				t.Errorf("sent %d, %v, want %q", n, err, c.words)
			}
			if err := s.Pool().Free(f); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestLaunchTimeOnVethIsRefused(t *testing.T) {
	ns := newNet(t, testbed.VethConfig{})
	s, err := tryOpen(ns, newPool(t, newUMEM(t, UMEMConfig{TxMetadata: true}), 0), Config{Interface: "a"})
	if err != nil {
		wantErr(t, err, errors.ErrUnsupported) // before 6.8
		return
	}
	defer s.Close()
	d := newPackets(t, s, 0, 1, 100)
	d[0].Flags = WithTxMeta
	s.UMEM().TxMeta(d[0]).Reset()
	s.UMEM().TxMeta(d[0]).RequestLaunchTime(1)
	if n, err := s.Send(d); n != 0 || !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), "which the driver veth lacks") {
		t.Errorf("sent %d, %v", n, err)
	}
}

// If Open wants zero-copy and there is none, the error has the reason and the alternatives.
func TestWhyThereIsNoZeroCopy(t *testing.T) {
	for name, c := range map[string]struct {
		device Device
		multi  bool
		words  string
	}{
		"driver":   {Device{Known: true, Driver: "veth"}, false, "zero-copy on b needs a driver with AF_XDP support, which the driver veth lacks; use BindAuto"},
		"segments": {Device{Known: true, ZeroCopy: true, MaxSegments: 1, Driver: "igb"}, true, "packets of one frame, since the driver igb takes no others in that mode; leave Config.MultiBuffer out"},
		"MTU":      {Device{Known: true, ZeroCopy: true, MaxSegments: 1, Driver: "igb"}, false, "lower the interface's MTU"},
		"fragments": {Device{Known: true, ZeroCopy: true, MaxSegments: 8, Driver: "ice"}, true,
			"packets and queues that the driver ice takes in that mode"},
		"old kernel": {Device{Driver: "igb"}, false, "zero-copy on b needs Linux " + oldestKernel + " or later and a driver with AF_XDP support; use"},
	} {
		err := c.device.zeroCopyError(&Config{Interface: "b", MultiBuffer: c.multi}, unix.EOPNOTSUPP)
		if !errors.Is(err, errors.ErrUnsupported) || !errors.Is(err, unix.EOPNOTSUPP) || !strings.Contains(err.Error(), c.words) {
			t.Errorf("%s: %q, want %q", name, err, c.words)
		}
	}
	ns := newNet(t, testbed.VethConfig{})
	_, err := tryOpen(ns, newPool(t, newUMEM(t, UMEMConfig{}), 0), Config{Interface: "a", Mode: BindZeroCopy})
	if d := veth(true); !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), "use BindAuto or BindCopy") {
		t.Errorf("%v on %s", err, d.Driver)
	}
}
