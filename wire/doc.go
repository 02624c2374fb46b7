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
package wire
