// SPDX-License-Identifier: Apache-2.0

// Package agentproto holds the layouts of docs/agent.md, for the agent and for clients in Go:
// messages of the handshake, entries, completions, and the shared memory with its indices.
package agentproto

// Version is the only version of the protocol so far.
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

// What HELLO asks for where it leaves a number 0, and what it may ask for.
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

// DefaultSocket is where an agent listens unless it is configured otherwise.
const DefaultSocket = "/run/libra/agent.sock"
