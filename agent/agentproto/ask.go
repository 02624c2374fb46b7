// SPDX-License-Identifier: Apache-2.0

package agentproto

import "fmt"

// AskLen is the length of an ASK, and of the first message of its answer. AnswerPart limits the
// length of the other messages.
const (
	AskLen     = 16
	AnswerPart = 32 << 10
)

// MarshalAsk returns an ASK.
func MarshalAsk() []byte { return MarshalTold(0) }

// ParseAsk reads an ASK.
func ParseAsk(b []byte) error {
	if len(b) != AskLen || order.Uint32(b) != messageMagic || !zero(b[4:]) {
		return BadHello
	}
	return nil
}

// MarshalTold returns the first message of the answer to an ASK; a text of n bytes follows.
func MarshalTold(bytes int) []byte {
	b := make([]byte, AskLen)
	order.PutUint32(b, messageMagic)
	order.PutUint64(b[8:], uint64(bytes))
	return b
}

// ParseTold reads the first message of an answer, and returns the length of the text that follows.
// If the message is a refusal, the error is a [*RefusedError].
func ParseTold(b []byte) (bytes uint64, err error) {
	if len(b) == RefusedLen {
		_, err := ParseAnswer(b)
		return 0, err
	}
	if len(b) != AskLen || order.Uint32(b) != messageMagic || !zero(b[4:8]) {
		return 0, fmt.Errorf("the answer of %d bytes is not an agent's", len(b))
	}
	return order.Uint64(b[8:]), nil
}
