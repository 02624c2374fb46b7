// SPDX-License-Identifier: Apache-2.0

// Package capture records the frames that a process's link sends and receives, as pcapng.
//
// A process that can be captured runs a [Server], which answers on an abstract Unix socket named
// after its process ID, in its own network namespace. Such a socket has no file: it ends with the
// process. [Attach] connects to it from another process of the same user or root, and
// [Session.Save] writes the frames that it sends. [Record] writes a link's frames into a file from
// within the process.
//
// The link never waits for a capture. Each capture has its own queue; frames that do not fit are
// counted, and the count is in the file.
//
// It is part of the libra command, not a stable interface: it changes with any release.
package capture

import "errors"

// queueBytes is the size of each capture's queue: at least ten thousand frames of 1,500 bytes,
// enough for many scheduler slices of a busy machine.
const queueBytes = 16 << 20

var (
	// ErrNoProcess means that no process has that ID.
	ErrNoProcess = errors.New("no such process")
	// ErrNotCapturable means that a process does not offer a capture.
	ErrNotCapturable = errors.New("not a running 'libra worker' or 'libra ps'")
	// ErrPermission means that a process belongs to another user or that its
	// network namespace cannot be entered.
	ErrPermission = errors.New("permission denied")
)
