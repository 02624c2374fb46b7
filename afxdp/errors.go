// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp

import (
	"errors"
	"fmt"
	"strings"
)

// Errors to distinguish with [errors.Is]. They wrap, or are wrapped in, errors that name the
// interface, queue, frame or number. After Close, methods return [net.ErrClosed].
var (
	// ErrFrameState refuses a frame that is not the caller's: it is free, filling or in flight. The
	// error is a [FrameError].
	ErrFrameState = errors.New("afxdp: frame is not yours")
	// ErrDescriptor refuses a descriptor of bytes outside its chunk, or one that the kernel would
	// refuse. The error is a [DescError].
	ErrDescriptor = errors.New("afxdp: invalid descriptor")
	// ErrShortBatch means that the caller's slice is too short for the fragments of one packet;
	// pass Receive at least [MaxFragments].
	ErrShortBatch = errors.New("afxdp: batch is shorter than one packet's fragments")
	// ErrConcurrentUse means that two goroutines are inside one half of a Socket.
	ErrConcurrentUse = errors.New("afxdp: socket used by two goroutines at once")
	// ErrRingCorrupt means that the other side of a ring published an
	// impossible position. The socket must be reopened or closed.
	ErrRingCorrupt = errors.New("afxdp: ring position is impossible")

	// ErrLinkDown means that the interface is administratively down. The
	// socket stays valid: see [Socket.Recover].
	ErrLinkDown = errors.New("afxdp: interface is down")
	// ErrInterfaceGone means that no interface has the name, that it disappeared, or that the
	// socket is no longer bound to it. See [Socket.Recover].
	ErrInterfaceGone = errors.New("afxdp: no such interface")
	// ErrNoQueue means that the interface has no such queue.
	ErrNoQueue = errors.New("afxdp: no such queue")
	// ErrFewQueues means that the interface has, or would have, fewer queues than its driver needs
	// for an XDP program or for the open sockets.
	ErrFewQueues = errors.New("afxdp: too few queues")
	// ErrQueueBusy means that another AF_XDP socket holds the queue.
	ErrQueueBusy = errors.New("afxdp: queue is held by another socket")
	// ErrFrameTooSmall means that packets to be received do not fit a frame: those of the
	// interface's MTU, or of Config.MaxPacket.
	ErrFrameTooSmall = errors.New("afxdp: packets exceed the frame")
	// ErrProgramAttached means that another process's XDP program is on the interface. It is never
	// replaced.
	ErrProgramAttached = errors.New("afxdp: another XDP program is attached")
	// ErrNoProgram means that no XDP program is on the interface, and that its driver sends nothing
	// in zero-copy mode without one. Open attaches one that passes all packets, if it may; a
	// process without CAP_NET_ADMIN needs one that [Attach] attached for it.
	ErrNoProgram = errors.New("afxdp: zero-copy mode needs an XDP program on the interface")
	// ErrConfig refuses an option's value.
	ErrConfig = errors.New("afxdp: invalid configuration")
	// ErrMemlock means that the UMEM is larger than the process may have: by RLIMIT_MEMLOCK, by its
	// cgroup's limit, or because the system has no more memory. A UMEM within the cgroup's limit,
	// but beyond its remainder, ends the process, as any memory does; so does one beyond the limit
	// if /sys/fs/cgroup is not visible, as within "ip netns exec", which hides it ("nsenter --net"
	// does not).
	ErrMemlock = errors.New("afxdp: memory limit is too low for the UMEM")
	// ErrPermission means that a privilege is missing; the error names it.
	ErrPermission = errors.New("afxdp: missing privilege")
	// ErrInUse refuses to close a UMEM with open sockets, and a second Run of a Group.
	ErrInUse = errors.New("afxdp: still in use")
	// ErrStillLent means that the device may still read and write frames that a socket in zero-copy
	// mode lent it before it was closed. They stay lent: see [Socket.Reclaim].
	ErrStillLent = errors.New("afxdp: the device still holds frames of a closed socket")
	// ErrNoFrames means that a UMEM or Pool has too few frames left.
	ErrNoFrames = errors.New("afxdp: not enough free frames")
	// ErrNoHugePages means that huge pages were required and there are none.
	ErrNoHugePages = errors.New("afxdp: no huge pages available")
	// ErrPassedFD refuses to reopen a socket that came as a passed fd, and to open one that was
	// open before: its creator must pass a new one.
	ErrPassedFD = errors.New("afxdp: socket came from a passed descriptor")
)

// A FrameError reports an operation on a frame in the wrong state.
// errors.Is(err, [ErrFrameState]) is true.
type FrameError struct {
	Op    string // refused operation: "send", "free", "fill"
	Frame Frame
	State string // state the frame is in: "free", "yours", "filling", "in flight", "no such frame"
}

func (e *FrameError) Error() string {
	return fmt.Sprintf("%v: %s of frame %d, which is %s", ErrFrameState, e.Op, e.Frame, e.State)
}

// Unwrap returns ErrFrameState.
func (e *FrameError) Unwrap() error { return ErrFrameState }

// A DescError reports a descriptor that Send refused.
// errors.Is(err, [ErrDescriptor]) is true.
type DescError struct {
	Desc   Desc
	Reason string
}

func (e *DescError) Error() string {
	return fmt.Sprintf("%v: frame %d offset %d length %d: %s", ErrDescriptor, e.Desc.Frame, e.Desc.Off, e.Desc.Len,
		e.Reason)
}

// Unwrap returns ErrDescriptor.
func (e *DescError) Unwrap() error { return ErrDescriptor }

// oldestKernel is the oldest Linux on which the package is tested and supported. The features of
// older kernels are unknown.
const oldestKernel = "6.1"

// A FeatureError means that the running kernel, or the interface's driver, lacks a feature.
// errors.Is(err, [errors.ErrUnsupported]) is true.
type FeatureError struct {
	Feature string // what was requested
	Since   string // first Linux version that has it, e.g. "6.6"; "" if the running kernel has it
	Needs   string // what else it needs, "" for nothing
	Remedy  string // what to do instead, "" for nothing
	Err     error  // what the kernel answered
}

func (e *FeatureError) Error() string {
	var needs []string
	if e.Since != "" {
		needs = append(needs, "Linux "+e.Since+" or later")
	}
	if e.Needs != "" {
		needs = append(needs, e.Needs)
	}
	remedy := ""
	if e.Remedy != "" {
		remedy = "; " + e.Remedy
	}
	return fmt.Sprintf("afxdp: %s needs %s%s: %v", e.Feature, strings.Join(needs, " and "), remedy, e.Err)
}

// newerThan returns a version of Linux, as "6.14", if the running kernel is older; otherwise "",
// because then something else lacks the feature.
func newerThan(version string) string {
	var major, minor int
	if _, err := fmt.Sscanf(version, "%d.%d", &major, &minor); err == nil && !kernelBefore(kernelRelease(), major, minor) {
		return ""
	}
	return version
}

// Unwrap returns errors.ErrUnsupported and the kernel's answer.
func (e *FeatureError) Unwrap() []error { return []error{errors.ErrUnsupported, e.Err} }
