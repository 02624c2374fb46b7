// SPDX-License-Identifier: Apache-2.0

// Package control is Libra's control plane: admission of jobs and senders, harvest of the
// aggregator's sums, barriers between workers.
//
// [Aggregator] is the service of the switch daemon, for its data plane; [ParameterServer] is
// the service of a parameter server, and [Harvester] the client with which it collects the sums. A
// worker takes part by [Join]. All of it is gRPC over the kernel's TCP, which the XDP programs
// pass. Harvested sums are the only gradients on this path.
//
// # Units
//
// Sums are in the units of slots; aggregator.JobConfig.Units converts them. Limits and leases are
// durations on the wall clock of the process that measures them.
//
// # Errors
//
// Services return gRPC status errors whose code determines the reaction: InvalidArgument and
// FailedPrecondition are permanent, ResourceExhausted names the exhausted resource, Unavailable may
// be retried, and Aborted means that the job or the service has ended. Clients add role and call
// with [access.CallError]; a TLS mismatch wraps [access.ErrTLS].
//
// # Ownership and goroutines
//
// gRPC's goroutines use a service, which ends with its context and Close. A job belongs to the
// process that created it, by a random key; [Owned.Hold] keeps it alive. What a [Harvester] passes
// to apply is valid only during the call, and apply runs on the goroutine of [Harvester.Run].
package control
