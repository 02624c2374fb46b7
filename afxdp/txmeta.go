// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp

import "encoding/binary"

// TxMetaSize is the size in bytes of a packet's metadata, which is before the packet (struct
// xsk_tx_metadata).
const TxMetaSize = 24

// Flags of struct xsk_tx_metadata.
const (
	txMetaTimestamp  = 1 << 0
	txMetaChecksum   = 1 << 1
	txMetaLaunchTime = 1 << 2
)

// TxMeta is a view of the TxMetaSize bytes before a packet in its frame: the request to the device,
// and after completion its answer. It needs UMEMConfig.TxMetadata and is used for descriptors with
// WithTxMeta. The device must have the feature, see [Device]; copy mode has checksums and software
// timestamps everywhere. Send refuses a request that the device would ignore with a [FeatureError].
//
// See https://docs.kernel.org/networking/xsk-tx-metadata.html.
type TxMeta []byte

// TxMeta returns the metadata of the packet that d describes. d.Off must be at
// least TxMetaSize.
func (u *UMEM) TxMeta(d Desc) TxMeta {
	end := int(d.Frame)<<u.shift + int(d.Off)
	return TxMeta(u.mem[end-TxMetaSize : end : end])
}

// Reset clears all requests. A frame's memory has its old content, so a packet's metadata starts
// with Reset.
func (m TxMeta) Reset() { clear(m) }

// RequestChecksum requests the 16-bit ones' complement checksum over the packet from byte start to
// its end, stored at byte start+offset. The field must hold the pseudo header's sum.
func (m TxMeta) RequestChecksum(start, offset uint16) {
	m.setFlag(txMetaChecksum)
	binary.NativeEndian.PutUint16(m[8:], start)
	binary.NativeEndian.PutUint16(m[10:], offset)
}

// RequestTimestamp requests the time of transmission, see Timestamp. The kernel writes it over the
// parameters of the other requests, so those are lost when the frame is sent again.
func (m TxMeta) RequestTimestamp() { m.setFlag(txMetaTimestamp) }

// RequestLaunchTime requests that the device send at the given time of its clock, in nanoseconds.
// Needs Linux 6.14 and a driver with the feature.
func (m TxMeta) RequestLaunchTime(ns uint64) {
	m.setFlag(txMetaLaunchTime)
	binary.NativeEndian.PutUint64(m[16:], ns)
}

// Timestamp returns the time of transmission after RequestTimestamp and completion, in nanoseconds:
// of the device's clock in zero-copy mode, of CLOCK_TAI in copy mode.
func (m TxMeta) Timestamp() uint64 { return binary.NativeEndian.Uint64(m[8:]) }

func (m TxMeta) flags() uint64 { return binary.NativeEndian.Uint64(m) }

func (m TxMeta) setFlag(f uint64) { binary.NativeEndian.PutUint64(m, m.flags()|f) }

// refusalOf returns why the kernel would refuse the request, or "". A refused request stays at the
// head of the TX ring and blocks it.
func (m TxMeta) refusalOf(packet uint32) string {
	flags := m.flags()
	if flags&^(txMetaTimestamp|txMetaChecksum|txMetaLaunchTime) != 0 {
		return "unknown flags in the metadata: call TxMeta.Reset first"
	}
	if flags&txMetaChecksum != 0 {
		start, off := binary.NativeEndian.Uint16(m[8:]), binary.NativeEndian.Uint16(m[10:])
		if uint32(start)+uint32(off)+2 > packet {
			return "checksum field lies beyond the packet"
		}
	}
	return ""
}
