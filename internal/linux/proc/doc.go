// SPDX-License-Identifier: Apache-2.0

// Package proc supervises the child processes of a command that runs a whole cluster on one
// machine: it starts them, waits until each announces that it is ready, forwards their standard
// error with a prefix, turns the first failure into an error with the child's last output, and
// stops them all.
//
// # Readiness
//
// A child writes lines to standard output. The first line that is a JSON object with the member
// "ready" announces readiness; the member's value is decoded into the variable given to
// [Child.Ready], so a child can report, for example, its port. [AnnounceReady] writes that line.
// Every other line goes to [Spec.OnLine].
//
// # Cleanup
//
// Each child is the leader of its own process group, so a Ctrl-C at the terminal reaches the parent
// only, and the parent decides in which order processes end. On Linux, the processes of a child's
// group are terminated with it, and each child has a parent-death signal (SIGKILL), so a killed
// parent leaves no child behind. Processes that its children have started remain.
package proc
