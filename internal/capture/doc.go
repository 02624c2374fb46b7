// SPDX-License-Identifier: Apache-2.0

// Package capture records what a process's link sends and receives, as pcapng.
//
// A process that can be captured runs a [Server], which answers on an abstract
// Unix socket named after its process ID, in its own network namespace. Such a
// socket has no file: the kernel takes it away with the process. [Attach]
// connects to it from another process, of the same user or root's, and
// [Session.Save] writes the frames that it then sends. [Record] writes a link's
// frames into a file from within the process.
//
// The link never waits for any of them. Each has a queue of its own; frames
// that find it full are counted, and the count is in the file.
package capture

import "errors"

// queueBytes is the size of each capture's queue: at least ten thousand frames
// of 1,500 bytes, which bridges many scheduler slices of a full machine.
const queueBytes = 16 << 20

var (
	// ErrNoProcess means that there is no process of that number.
	ErrNoProcess = errors.New("no such process")
	// ErrNotCapturable means that a process offers no capture.
	ErrNotCapturable = errors.New("not a running 'libra worker' or 'libra ps'")
	// ErrPermission means that a process belongs to another user or that its
	// network namespace cannot be entered.
	ErrPermission = errors.New("permission denied")
)
