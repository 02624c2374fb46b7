// SPDX-License-Identifier: Apache-2.0

package codec

import "fmt"

// MalformedError says where bytes are not the codes of this number of values.
type MalformedError struct {
	Offset int // of the byte of marks, the tags, the codes or the rest that is wrong
	Value  int // index of the first value that these bytes are about
	Reason string
}

// The reasons, by what is at the offset.
const (
	truncated   = "the codes end too early"
	leftOver    = "bytes are left over"
	burstBeyond = "a burst beyond the last value is marked"
	tagBeyond   = "a value beyond the last has a tag"
	emptyBurst  = "a burst of zeros is marked"
)

func malformed(offset, value int, reason string) error {
	return &MalformedError{Offset: offset, Value: value, Reason: reason}
}

func (e *MalformedError) Error() string {
	return fmt.Sprintf("codec: malformed at byte %d, value %d: %s; decode the bytes of one encoding, all of them, with "+
		"its number of values", e.Offset, e.Value, e.Reason)
}
