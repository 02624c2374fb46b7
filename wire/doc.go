// SPDX-License-Identifier: Apache-2.0

// Package wire defines Libra's frames: their layout, and how they are encoded
// and decoded in place.
//
// A frame is Ethernet II (one 802.1Q tag is accepted), IPv4 or IPv6, UDP with
// a valid checksum, a 12-byte [Header] and a body that depends on the header's
// [Type]. Every number is big-endian. docs/wire.md is the normative text; the
// frames in testdata/ are its test vectors.
//
// Nothing here allocates and nothing copies a payload: encoders write into the
// caller's buffer (usually a UMEM chunk) and decoders return views of it.
// Decoders take bytes from the network, so they check every length before they
// read and never panic.
//
// # Units
//
// Lengths are in bytes, of a payload (what UDP carries) unless a frame is named.
// Gradients are IEEE 754 float32; in jobs of fixed arithmetic their places hold an
// int32. Sequence numbers and epochs wrap and are compared as serial numbers
// (RFC 1982).
//
// # Errors
//
// [ParseFrame] and the other decoders return errors that wrap [ErrForeign],
// [ErrTruncated], [ErrChecksum], [ErrVersion] or [ErrLength]. A receiver's refusal is a
// [Refusal], which is an error, too. Encoders do not fail: they panic if the buffer is
// too short, as an index out of range does.
//
// # Ownership and goroutines
//
// A [Packet], a [Stripe] and [Rows] are views: they are valid while the buffer below
// them is. Nothing here keeps a buffer or has state of its own, and an [Envelope] is not
// changed after [NewEnvelope], so goroutines may share it for buffers of their own.
package wire
