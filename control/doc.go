// SPDX-License-Identifier: Apache-2.0

// Package control is Libra's control plane: admission of jobs and senders,
// harvest of the aggregator's sums, barriers between workers.
//
// [Aggregator] is the service of Libra_s, the daemon beside a data plane;
// [ParameterServer] is the service of a parameter server, and [Harvester] the
// client with which it collects the sums. A worker takes part by [Join]. All of it is
// gRPC over the kernel's TCP, which the XDP programs let pass. No gradient takes this
// path except as a harvested sum.
//
// # Units
//
// Sums are what slots hold; aggregator.JobConfig.Units converts them. Limits and leases are
// durations of the wall clock of the process that counts them.
//
// # Errors
//
// Services return gRPC status errors whose code tells what to do: InvalidArgument and
// FailedPrecondition will not change by themselves, ResourceExhausted names what is used up,
// Unavailable may be tried again, and with Aborted the job or the service has ended. Clients add role and call with
// [CallError]; a TLS mismatch wraps [ErrTLS].
//
// # Ownership and goroutines
//
// A service is used by gRPC's goroutines and ends with its context and Close. A job belongs
// to the process that created it, by a random key; [Owned.Hold] keeps it alive. What a
// [Harvester] passes to apply is valid during the call only, and apply runs on the
// goroutine of [Harvester.Run].
package control
