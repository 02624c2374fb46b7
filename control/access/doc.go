// SPDX-License-Identifier: Apache-2.0

// Package access guards the control plane: who may connect to a control service, and what each
// caller may do there.
//
// [Dial] connects to a service and [NewServer] serves one, both with the same settings of gRPC.
// With a [Security], both sides show certificates of one authority, and the service's must be for
// its role ([Peer]). A service asks [CallerOf] who calls, and refuses those without the role that
// the call needs. Jobs and admissions are further guarded by a [Secret] that only their owner has.
// Without a Security, connections are plain TCP, and every caller has all roles except that of an
// operator, which only callers on the service's own host have.
//
// # Units
//
// Limits are durations on the wall clock.
//
// # Ownership and goroutines
//
// The caller of Dial closes the connection. All functions and methods may be called from any
// goroutine.
//
// # Errors
//
// Refusals are gRPC status errors with the code PermissionDenied. A disagreement on TLS wraps
// [ErrTLS]. [CallError] turns the error of a call into what a person can act on.
package access
