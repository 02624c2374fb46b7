// SPDX-License-Identifier: Apache-2.0

// Package agentproto holds the layouts of docs/agent.md, for the agent and for clients in Go:
// messages of the handshake, entries, completions, and the shared memory with its indices.
//
// It is part of the libra command, not a stable interface: it changes with any release.
package agentproto

// Version is the only version of the protocol.
const Version = 1

// Sizes in bytes.
const (
	HelloLen      = 192
	WelcomeLen    = 256
	RefusedLen    = 512
	HeaderLen     = 4096
	EntryLen      = 64
	CompletionLen = 64
	StatsLen      = 128
)

// Defaults for zero numbers in HELLO, and their limits.
const (
	DefaultEntries     = 256
	MinEntries         = 8
	MaxEntries         = 65536
	DefaultBufferBytes = 8 << 20
	pageSize           = 4096
)

const (
	messageMagic = 0x4152424c
	memoryMagic  = 0x31544741_4152424c
)

// DefaultSocket is where an agent listens by default.
const DefaultSocket = "/run/libra/agent.sock"
