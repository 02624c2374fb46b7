// SPDX-License-Identifier: Apache-2.0

// Package agent lets unprivileged processes push gradients and pull weights through one
// process that owns the host's link. Clients reach it over a Unix socket and shared memory, as
// docs/agent.md describes byte by byte; they may be written in any language.
//
// An [Agent] serves jobs. Each [Job] has one [transport.Worker], which sends for all clients of
// the job: they share its windows, its hot set and its frames. Tickets, barriers, prepared
// batches, memory limits and counters are each client's own.
//
// # Units
//
// Limits of memory are bytes, steps of barriers count from [Job.NextStep].
//
// # Trust
//
// A client may write anything into its shared memory at any time. The agent reads an entry,
// its keys and its gradients once, into memory of its own, and checks and sends that copy. A client
// that breaks the protocol is ended and counted; others notice nothing. Clients of one job trust
// each other as workers of a job do: what one pushes is added to the same sums.
//
// # Errors
//
// [Listen] names what is wrong with a configuration. What a client does wrong is told to that client,
// and counted in [Stats]. A worker that ends takes its job's clients with it; the other jobs go on.
//
// # Ownership and goroutines
//
// A Worker belongs to its owner, who closes it after the agent. Methods may be called from any goroutine.
// The rings are read, and entries answered, by the goroutine of the job's worker, whose feed the job is
// ([transport.Feed]): a push passes no other goroutine. It sleeps for the network and for all clients' sockets at once.
package agent
