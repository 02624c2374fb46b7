// SPDX-License-Identifier: Apache-2.0

// Package agent lets unprivileged processes push gradients and pull weights through one
// process that owns the host's link. Clients reach it over a Unix socket and shared memory, as
// docs/agent.md describes byte by byte; they may be written in any language.
//
// An [Agent] serves jobs. Each [Job] has one [transport.Worker], which sends for all clients of
// the job: they share its windows, its hot set and its frames. Tickets, barriers, prepared
// batches, memory limits and counters are each client's own.
//
// A [Range] has jobs without a parameter server, which clients open and own: an [Owner] passes the
// harvests of a job to the client that owns it, one for each HARVEST.
//
// # Units
//
// Memory limits are in bytes; steps of barriers count from [Job.NextStep].
//
// # Trust
//
// A client may write anything into its shared memory at any time. The agent reads an entry,
// its keys and its gradients once, into its own memory, and checks and sends that copy. A client
// that breaks the protocol is ended and counted, without effect on others. Clients of one job trust
// each other as workers of a job do: their pushes are added to the same sums.
//
// # Errors
//
// [Listen] returns configuration errors. A client's errors are reported to that client and
// counted in [Stats]. When a worker ends, its job's clients end with it; other jobs continue.
//
// # Ownership and goroutines
//
// A Worker belongs to its owner, who closes it after the agent. Methods may be called from any
// goroutine. The job is the feed ([transport.Feed]) of its worker, whose goroutine reads the rings
// and answers the entries, so that a push passes no other goroutine. It sleeps on the network and
// all clients' sockets at once.
package agent
