// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp

import (
	"errors"
	"fmt"
	"net"

	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/internal/linux/netdev"
)

// Device describes the features of an interface and its driver, as the kernel reports them (generic
// netlink family netdev, ethtool). Features that the kernel is too old to report are false.
type Device struct {
	Driver string // "igb"; "" if the driver does not report it
	Known  bool   // the kernel reports the following fields: Linux 6.3

	Native      bool // AttachNative
	ZeroCopy    bool // BindZeroCopy
	MultiBuffer bool // programs that accept packets of several buffers
	// MaxSegments is the largest number of frames of a packet in zero-copy mode, in either
	// direction: 0 without zero-copy, 1 if the device has no Config.MultiBuffer there (Linux 6.6).
	MaxSegments int

	// Hints that the device gives, see RxHints (Linux 6.8).
	RxTimestamp, RxHash, RxVLAN bool
	// Requests that the device fulfils in zero-copy mode, see TxMeta (Linux 6.8; launch times
	// 6.14). In copy mode the kernel fulfils the first two for every device.
	TxTimestamp, TxChecksum, TxLaunchTime bool
	// Clock is the number of the device's own clock, N in /dev/ptpN, for its timestamps and launch
	// times; -1 for none.
	Clock int
}

// QueryDevice returns the features of an interface and its driver. Info.Device has the same for an
// open socket. The calling thread's network namespace must be the interface's. It needs no
// privilege.
func QueryDevice(ifname string) (Device, error) {
	ifi, err := interfaceByName(ifname)
	if err != nil {
		return Device{}, err
	}
	return queryDevice(ifi)
}

func queryDevice(ifi *net.Interface) (Device, error) {
	d := Device{Clock: -1}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return d, fmt.Errorf("afxdp: driver of %s: socket: %w", ifi.Name, err)
	}
	defer unix.Close(fd)
	d.Driver = driverOf(fd, ifi.Name)
	if ts, err := unix.IoctlGetEthtoolTsInfo(fd, ifi.Name); err == nil { // a driver may not support it
		d.Clock = int(ts.Phc_index)
	}
	has, err := netdev.Describe(ifi.Index)
	if errors.Is(err, netdev.ErrUnknown) {
		return d, nil
	}
	if err != nil {
		return d, fmt.Errorf("afxdp: %s: %w", ifi.Name, err)
	}
	d.Known = true
	d.Native, d.ZeroCopy, d.MultiBuffer, d.MaxSegments = has.Redirect, has.ZeroCopy, has.MultiBuffer, has.MaxSegments
	d.RxTimestamp, d.RxHash, d.RxVLAN = has.RxTimestamp, has.RxHash, has.RxVLANTag
	d.TxTimestamp, d.TxChecksum, d.TxLaunchTime = has.TxTimestamp, has.TxChecksum, has.TxLaunchTime
	return d, nil
}

// driverOf returns the name of an interface's driver, "" if it is not reported. fd may be any
// socket of the Internet protocols.
func driverOf(fd int, ifname string) string {
	info, err := unix.IoctlGetEthtoolDrvinfo(fd, ifname)
	if err != nil {
		return ""
	}
	return unix.ByteSliceToString(info.Driver[:])
}

// describe adds the driver's description. A socket works without it.
func (i *Info) describe(ifi *net.Interface) {
	i.Device, _ = queryDevice(ifi)
	napi, _ := netdev.ReceiveNAPI(ifi.Index, i.Queue)
	i.NAPI = int(napi)
}

// name returns the driver's name for an error.
func (d Device) name() string {
	if d.Driver == "" {
		return "the driver"
	}
	return "the driver " + d.Driver
}

// zeroCopyError explains why a bind in zero-copy mode was refused with err.
func (d Device) zeroCopyError(cfg *Config, err error) error {
	e := &FeatureError{Feature: "zero-copy on " + cfg.Interface, Err: err}
	switch {
	case d.Known && !d.ZeroCopy:
		e.Needs = "a driver with AF_XDP support, which " + d.name() + " lacks"
		e.Remedy = "use BindAuto or BindCopy, or a network card whose driver has it"
	case d.Known && cfg.MultiBuffer && d.MaxSegments <= 1:
		e.Needs = "packets of one frame, since " + d.name() + " takes no others in that mode"
		e.Remedy = "leave Config.MultiBuffer out, or use BindAuto or BindCopy"
	case d.Known:
		e.Needs = "packets and queues that " + d.name() + " takes in that mode"
		e.Remedy = "lower the interface's MTU to what a frame has room for, look at what the driver logged (dmesg), or use BindAuto or BindCopy"
	default:
		e.Since, e.Needs = oldestKernel, "a driver with AF_XDP support"
		e.Remedy = "use BindAuto or BindCopy"
	}
	return e
}

// lacks explains why the device would ignore a request in a packet's metadata; nil if it would not.
// A packet without its checksum, or ahead of its time, is worse than none.
func (i *Info) lacks(request uint64) error {
	d := &i.Device
	if !d.Known {
		return nil
	}
	e := &FeatureError{Err: unix.EOPNOTSUPP, Needs: "a driver that has it, which " + d.name() + " lacks"}
	switch {
	case request&txMetaLaunchTime != 0 && !d.TxLaunchTime:
		e.Feature, e.Since, e.Remedy = "launch time on "+i.Interface, newerThan("6.14"), "wait in the program, as Pace does"
	case request&txMetaChecksum != 0 && i.ZeroCopy && !d.TxChecksum:
		e.Feature, e.Since, e.Remedy = "checksums in zero-copy mode on "+i.Interface, newerThan("6.8"),
			"compute them in the program, or use BindCopy"
	case request&txMetaTimestamp != 0 && i.ZeroCopy && !d.TxTimestamp:
		e.Feature, e.Since, e.Remedy = "transmit timestamps in zero-copy mode on "+i.Interface, newerThan("6.8"),
			"take the time in the program, or use BindCopy"
	default:
		return nil
	}
	return e
}
