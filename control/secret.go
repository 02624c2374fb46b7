// SPDX-License-Identifier: Apache-2.0

package control

import (
	"crypto/rand"
	"crypto/subtle"
	"encoding/binary"
	"io"
)

// secret proves that a call comes from the owner of a job (its key) or of an admission (its token).
type secret [16]byte

// random generates identifiers of instances, and secrets.
type random struct{ from io.Reader }

// newRandom uses the given source; nil means crypto/rand.
func newRandom(from io.Reader) random {
	if from == nil {
		from = rand.Reader // never fails
	}
	return random{from}
}

func (r random) fill(b []byte) {
	if _, err := io.ReadFull(r.from, b); err != nil {
		panic("control: the source of random numbers has ended: " + err.Error())
	}
}

func (r random) uint64() uint64 {
	var b [8]byte
	r.fill(b[:])
	return binary.LittleEndian.Uint64(b[:])
}

func (r random) secret() (s secret) {
	r.fill(s[:])
	return s
}

// is compares in constant time.
func (s *secret) is(shown []byte) bool { return subtle.ConstantTimeCompare(s[:], shown) == 1 }
