// SPDX-License-Identifier: Apache-2.0

// Package conformance tests a data plane against the golden model: the same
// frames and management calls go to both, and every verdict, reply, sum and
// counter must be the same, bit for bit.
//
// It is for the tests of data planes and transports, not a stable interface: it changes with any
// release.
package conformance
