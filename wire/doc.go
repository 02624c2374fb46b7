// SPDX-License-Identifier: Apache-2.0

// Package wire defines Libra's frames: their layout, and how they are encoded and decoded in place.
//
// A frame is Ethernet II (one 802.1Q tag is accepted), IPv4 or IPv6, UDP with a valid checksum, a
// 12-byte [Header] and a body that depends on the header's [Type]. Every number is big-endian.
// docs/wire.md is the normative text; the frames in testdata/ are its test vectors.
//
// The package does not allocate and copies no payload: encoders write into the caller's buffer
// (usually a UMEM chunk) and decoders return views of it. Decoders take bytes from the network, so
// they check every length before they read and never panic.
//
// # Units
//
// Lengths are in bytes, of a payload (the content of a UDP datagram) unless a frame is named.
// Gradients are IEEE 754 float32; jobs of fixed arithmetic have an int32 in their place. Sequence
// numbers and epochs wrap and are compared as serial numbers (RFC 1982).
//
// # Errors
//
// [ParseFrame] and the other decoders return errors that wrap [ErrForeign], [ErrTruncated],
// [ErrChecksum], [ErrVersion] or [ErrLength]. A receiver's refusal is a [Refusal], which is also an
// error. Encoders do not fail: they panic if the buffer is too short, like an index out of range.
//
// # Ownership and goroutines
//
// A [Packet], a [Stripe] and [Rows] are views: they are valid as long as their buffer is. The
// package keeps no buffer and no state, and an [Envelope] is not changed after [NewEnvelope], so
// goroutines may share it for their own buffers.
package wire
