// SPDX-License-Identifier: Apache-2.0

package agentproto

import "fmt"

const (
	// LearnLen is the length of a LEARN.
	LearnLen = 128
	// MaxCounters is the largest number of counters of a LEARN: about 250 MB.
	MaxCounters = 1 << 22
	// MaxLearned is the largest number of keys in the answer: about 15 MB of text. There may be eight
	// counters for each.
	MaxLearned = 1 << 19
)

// Learn asks an agent to count the keys that the clients of a job push.
type Learn struct {
	Counters uint32 // 1 to MaxCounters
	Job      string // "" if there is only one
}

// Marshal returns the message. The error names a text that is too long.
func (l *Learn) Marshal() ([]byte, error) {
	b := make([]byte, LearnLen)
	if len(l.Job) >= 64 {
		return nil, fmt.Errorf("agent: the name %q is longer than 63 bytes", l.Job)
	}
	order.PutUint32(b, messageMagic)
	order.PutUint32(b[4:], l.Counters)
	copy(b[64:], l.Job)
	return b, nil
}

// ParseLearn reads a message. The error wraps the code of the refusal.
func ParseLearn(b []byte) (l Learn, err error) {
	if len(b) != LearnLen || order.Uint32(b) != messageMagic || !zero(b[8:64]) {
		return l, BadHello
	}
	var ok bool
	l.Counters = order.Uint32(b[4:])
	if l.Job, ok = text(b[64:]); !ok {
		return l, fmt.Errorf("%w: the name is not a text that ends with a zero byte", BadHello)
	}
	if l.Counters < 1 || l.Counters > MaxCounters {
		return l, fmt.Errorf("%w: %d counters: it must be 1 to %d", BadHello, l.Counters, MaxCounters)
	}
	return l, nil
}
