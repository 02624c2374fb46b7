// SPDX-License-Identifier: Apache-2.0

package netdev

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Attributes of a device in <linux/netdev.h>, and the bits of its three sets of features.
const (
	devFeatures   = 3
	devMaxSegs    = 4
	devRxMetadata = 5
	devXSK        = 6

	actRedirect = 1<<0 | 1<<1 // NETDEV_XDP_ACT_BASIC and _REDIRECT
	actZeroCopy = 1 << 3
	actRxSG     = 1 << 5

	rxTimestamp = 1 << 0
	rxHash      = 1 << 1
	rxVLANTag   = 1 << 2

	xskTimestamp  = 1 << 0
	xskChecksum   = 1 << 1
	xskLaunchTime = 1 << 2
)

// Device describes the support of an interface's driver for XDP programs and AF_XDP sockets.
type Device struct {
	Redirect    bool // programs run in the driver, and can redirect to sockets
	ZeroCopy    bool // sockets in zero-copy mode
	MultiBuffer bool // programs support packets of several buffers
	MaxSegments int  // for packets that a socket in zero-copy mode sends

	RxTimestamp, RxHash, RxVLANTag        bool // hints about received packets
	TxTimestamp, TxChecksum, TxLaunchTime bool // requests of sockets in zero-copy mode
}

// Describe returns the features of an interface's driver. The error wraps ErrUnknown before Linux
// 6.3, or unix.ENODEV if there is no such interface. Some features require later kernels:
// MaxSegments (6.6), hints and requests (6.8), launch times (6.14).
func Describe(index int) (Device, error) {
	family, err := xdpFamily()
	if err != nil {
		return Device{}, err
	}
	answers, err := family.query(cmdDevGet, 0, number(ifindex, index))
	if err != nil {
		return Device{}, fmt.Errorf("features of interface %d: %w", index, err)
	}
	if len(answers) != 1 {
		return Device{}, fmt.Errorf("features of interface %d: %w", index, ErrUnknown)
	}
	a := answers[0]
	features, _ := a.uint64(devFeatures)
	segments, _ := a.uint32(devMaxSegs)
	rx, _ := a.uint64(devRxMetadata)
	tx, _ := a.uint64(devXSK)
	return Device{
		Redirect: features&actRedirect == actRedirect, ZeroCopy: features&actZeroCopy != 0,
		MultiBuffer: features&actRxSG != 0, MaxSegments: int(segments),
		RxTimestamp: rx&rxTimestamp != 0, RxHash: rx&rxHash != 0, RxVLANTag: rx&rxVLANTag != 0,
		TxTimestamp: tx&xskTimestamp != 0, TxChecksum: tx&xskChecksum != 0, TxLaunchTime: tx&xskLaunchTime != 0,
	}, nil
}

// Attributes of a queue.
const (
	queueID      = 1
	queueIfindex = 2
	queueType    = 3
	queueNAPI    = 4

	queueReceives = 0 // a value of queueType
)

// ReceiveNAPI returns the number of the NAPI context that serves a receive queue. It is 0 if there
// is none, as while the interface is down, or if the kernel (before 6.8) or the driver does not
// report it.
func ReceiveNAPI(index, queue int) (uint32, error) {
	family, err := xdpFamily()
	if errors.Is(err, ErrUnknown) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	answers, err := family.query(cmdQueueGet, 0, number(queueIfindex, index),
		number(queueType, queueReceives), number(queueID, queue))
	switch {
	// the interface is down; the kernel does not support the request
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.EOPNOTSUPP):
		return 0, nil
	case err != nil:
		return 0, fmt.Errorf("NAPI context of queue %d of interface %d: %w", queue, index, err)
	}
	for _, a := range answers {
		if id, ok := a.uint32(queueNAPI); ok {
			return id, nil
		}
	}
	return 0, nil
}
