// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp

// Frame is the number of a chunk of a UMEM, 0 <= Frame < UMEM.Frames().
type Frame uint32

// Desc identifies bytes of a frame: a packet, or one fragment of a packet.
type Desc struct {
	Frame Frame
	Len   uint32    // bytes
	Off   uint16    // of the first byte from the start of the chunk
	Flags DescFlags // zero for a packet in one frame without metadata
}

// DescFlags are the options of a descriptor, with the kernel's values.
type DescFlags uint16

const (
	// More means that the packet continues in the next descriptor
	// (XDP_PKT_CONTD). Only sockets with Config.MultiBuffer have it.
	More DescFlags = 1 << 0
	// WithTxMeta means that the bytes before the packet hold a request to the device
	// (XDP_TX_METADATA); see [UMEM.TxMeta].
	WithTxMeta DescFlags = 1 << 1
)

// MaxFragments is the largest number of descriptors of a packet: one for the linear part and 17
// fragments (MAX_SKB_FRAGS with its default value).
const MaxFragments = 18

// minPacket is the size of an Ethernet header, which the kernel's transmit path requires.
const minPacket = 14

// A frameState holds the state of a frame in the low two bits and, while the kernel holds the
// frame, the number of the socket through which it was lent in the others. So a completion counts
// only for a frame that was sent by the socket that reports it. Different goroutines write
// different frames' states.
type frameState uint16

const (
	stateFree     frameState = 0
	stateYours    frameState = 1
	stateFilling  frameState = 2
	stateInFlight frameState = 3

	stateBits  = 2
	stateMask  = 1<<stateBits - 1
	maxSockets = 1023 // per UMEM, more than a device has queues; number 0 is unused
)

func stateName(s frameState) string {
	return [...]string{"free", "yours", "filling", "in flight"}[s&stateMask]
}

// frameError returns the error for a frame that is not in the state "yours".
func frameError(op string, f Frame, state []frameState) error {
	name := "no such frame"
	if int(f) < len(state) {
		name = stateName(state[f])
	}
	return &FrameError{Op: op, Frame: f, State: name}
}
