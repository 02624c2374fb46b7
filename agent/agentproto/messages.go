// SPDX-License-Identifier: Apache-2.0

package agentproto

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"
	"unicode/utf8"
)

var order = binary.LittleEndian

// Features of HELLO and WELCOME.
const (
	// FeatureHarvest are jobs without a parameter server, their owners and [Harvest].
	FeatureHarvest = 1 << iota

	AllFeatures = FeatureHarvest
)

// Hello is a client's first message.
type Hello struct {
	Oldest, Newest uint16
	Features       uint64
	Entries        uint32 // in each ring; 0 means DefaultEntries
	Dim            uint32 // 0 means the job's
	BufferBytes    uint64 // 0 means DefaultBufferBytes
	Parties        uint32 // in barriers; 0: no barriers
	Owner          bool   // the client owns the job and takes its harvests
	Job, Client    string
	HotSet         [32]byte // zero means the job's
}

// Marshal returns the message. The error names a text that is too long.
func (h *Hello) Marshal() ([]byte, error) {
	b := make([]byte, HelloLen)
	order.PutUint32(b, messageMagic)
	order.PutUint16(b[4:], h.Oldest)
	order.PutUint16(b[6:], h.Newest)
	order.PutUint64(b[8:], h.Features)
	order.PutUint32(b[16:], h.Entries)
	order.PutUint32(b[20:], h.Dim)
	order.PutUint64(b[24:], h.BufferBytes)
	order.PutUint32(b[32:], h.Parties)
	if h.Owner {
		order.PutUint32(b[36:], 1)
	}
	for _, name := range []struct {
		text  string
		field []byte
	}{{h.Job, b[64:128]}, {h.Client, b[128:160]}} {
		if len(name.text) >= len(name.field) {
			return nil, fmt.Errorf("agent: the name %q is longer than %d bytes", name.text, len(name.field)-1)
		}
		copy(name.field, name.text)
	}
	copy(b[160:], h.HotSet[:])
	return b, nil
}

// ParseHello reads a message and fills in the defaults. The error wraps the code of the refusal.
func ParseHello(b []byte) (h Hello, err error) {
	if len(b) < 8 || order.Uint32(b) != messageMagic {
		return h, BadHello
	}
	// The rest of HELLO may differ in other versions.
	h.Oldest, h.Newest = order.Uint16(b[4:]), order.Uint16(b[6:])
	if h.Oldest > Version || h.Newest < Version {
		older := "upgrade the client's library, libra.so.1 or the Python package libra, to the agent's release"
		if h.Oldest > Version {
			older = "upgrade the agent to the release of the client's library, and restart it"
		}
		return h, fmt.Errorf("%w: the client speaks versions %d to %d, the agent version %d: %s",
			BadVersion, h.Oldest, h.Newest, Version, older)
	}
	if len(b) != HelloLen {
		return h, BadHello
	}
	h = Hello{
		Oldest: h.Oldest, Newest: h.Newest, Features: order.Uint64(b[8:]),
		Entries: order.Uint32(b[16:]), Dim: order.Uint32(b[20:]), BufferBytes: order.Uint64(b[24:]),
		Parties: order.Uint32(b[32:]), HotSet: [32]byte(b[160:192]),
	}
	if unknown := h.Features &^ AllFeatures; unknown != 0 {
		return h, fmt.Errorf("%w: bits %#x", Features, unknown)
	}
	if !zero(b[40:64]) {
		return h, fmt.Errorf("%w: bytes 40 to 63 are not zero", BadHello)
	}
	switch owner := order.Uint32(b[36:]); {
	case owner > 1:
		return h, fmt.Errorf("%w: owner is %d: it must be 0 or 1", BadHello, owner)
	case owner == 1 && h.Features&FeatureHarvest == 0:
		return h, fmt.Errorf("%w: an owner needs feature %#x", BadHello, FeatureHarvest)
	default:
		h.Owner = owner == 1
	}
	var ok [2]bool
	h.Job, ok[0] = text(b[64:128])
	h.Client, ok[1] = text(b[128:160])
	if ok != [2]bool{true, true} {
		return h, fmt.Errorf("%w: a name is not a text that ends with a zero byte", BadHello)
	}
	h.Entries, h.BufferBytes = cmp.Or(h.Entries, DefaultEntries), cmp.Or(h.BufferBytes, DefaultBufferBytes)
	if n := h.Entries; n < MinEntries || n > MaxEntries || n&(n-1) != 0 {
		return h, fmt.Errorf("%w: %d entries: it must be a power of two from %d to %d", BadHello, n, MinEntries, MaxEntries)
	}
	return h, nil
}

// Welcome is the answer to an admitted client.
type Welcome struct {
	Version          uint16
	Job              uint16
	Mode, Arithmetic uint8
	Features         uint64
	Dim              uint32
	Exponent         int32
	HotRows          uint32
	Client           uint32
	PID              uint32
	Instance         uint64
	NextStep         uint64
	Layout           Layout
	PreparedBytes    uint64
	HotSet           [32]byte
}

// Marshal returns the message.
func (w *Welcome) Marshal() []byte {
	b := make([]byte, WelcomeLen)
	order.PutUint32(b, messageMagic)
	order.PutUint16(b[8:], w.Version)
	order.PutUint16(b[10:], w.Job)
	b[12], b[13] = w.Mode, w.Arithmetic
	order.PutUint64(b[16:], w.Features)
	order.PutUint32(b[24:], w.Dim)
	order.PutUint32(b[28:], uint32(w.Exponent))
	order.PutUint32(b[32:], w.HotRows)
	order.PutUint32(b[36:], w.Client)
	order.PutUint32(b[40:], w.PID)
	order.PutUint64(b[48:], w.Instance)
	order.PutUint64(b[56:], w.NextStep)
	order.PutUint64(b[64:], w.Layout.Total)
	order.PutUint64(b[72:], w.Layout.SQ)
	order.PutUint64(b[80:], w.Layout.CQ)
	order.PutUint64(b[88:], w.Layout.Buffers)
	order.PutUint64(b[96:], w.Layout.BufferBytes)
	order.PutUint32(b[104:], w.Layout.Entries)
	order.PutUint64(b[112:], w.PreparedBytes)
	copy(b[160:], w.HotSet[:])
	return b
}

// RefusedError is an agent's refusal of a client.
type RefusedError struct {
	Code           Code
	Oldest, Newest uint16 // versions that the agent supports
	Text           string
}

func (e *RefusedError) Error() string { return "agent: refused: " + e.Text }
func (e *RefusedError) Unwrap() error { return e.Code }

// Marshal returns the message. It truncates a text that is too long.
func (e *RefusedError) Marshal() []byte {
	b := make([]byte, RefusedLen)
	order.PutUint32(b, messageMagic)
	order.PutUint32(b[4:], uint32(e.Code))
	order.PutUint16(b[8:], e.Oldest)
	order.PutUint16(b[10:], e.Newest)
	putText(b[16:], e.Text)
	return b
}

// ParseAnswer reads the answer to HELLO. If the agent has refused, the error is a [*RefusedError].
func ParseAnswer(b []byte) (*Welcome, error) {
	if len(b) < 8 || order.Uint32(b) != messageMagic {
		return nil, fmt.Errorf("agent: an answer of %d bytes is not an agent's: does a different program listen there?",
			len(b))
	}
	code := Code(order.Uint32(b[4:]))
	switch {
	case code != OK && len(b) == RefusedLen:
		e := &RefusedError{Code: code, Oldest: order.Uint16(b[8:]), Newest: order.Uint16(b[10:])}
		e.Text, _ = text(b[16:])
		return nil, e
	case code != OK || len(b) != WelcomeLen:
		return nil, fmt.Errorf("agent: an answer with code %d and %d bytes fits no version of the protocol "+
			"that this program knows", uint32(code), len(b))
	}
	w := &Welcome{
		Version: order.Uint16(b[8:]), Job: order.Uint16(b[10:]), Mode: b[12], Arithmetic: b[13],
		Features: order.Uint64(b[16:]),
		Dim:      order.Uint32(b[24:]), Exponent: int32(order.Uint32(b[28:])),
		HotRows: order.Uint32(b[32:]), Client: order.Uint32(b[36:]),
		PID: order.Uint32(b[40:]), Instance: order.Uint64(b[48:]), NextStep: order.Uint64(b[56:]),
		Layout: Layout{
			Total: order.Uint64(b[64:]), SQ: order.Uint64(b[72:]), CQ: order.Uint64(b[80:]), Buffers: order.Uint64(b[88:]),
			BufferBytes: order.Uint64(b[96:]), Entries: order.Uint32(b[104:]),
		},
		PreparedBytes: order.Uint64(b[112:]), HotSet: [32]byte(b[160:192]),
	}
	if w.Version != Version {
		return nil, fmt.Errorf("agent: %w: it chose version %d, this program speaks %d", BadVersion, w.Version, Version)
	}
	return w, nil
}

func zero(b []byte) bool { return !slices.ContainsFunc(b, func(x byte) bool { return x != 0 }) }

// text reads a padded text, and returns whether it is valid.
func text(b []byte) (string, bool) {
	s, rest, ok := bytes.Cut(b, []byte{0})
	return string(s), ok && utf8.Valid(s) && zero(rest)
}

// putText writes a padded text, truncated at the end of a character if it is too long.
func putText(b []byte, s string) {
	if len(s) >= len(b) {
		s = s[:len(b)-1]
		for !utf8.ValidString(s) && len(s) > 0 {
			s = s[:len(s)-1]
		}
	}
	clear(b[copy(b, s):])
}
