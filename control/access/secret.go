// SPDX-License-Identifier: Apache-2.0

package access

import (
	"crypto/rand"
	"crypto/subtle"
	"encoding/binary"
	"io"
)

// Secret proves that a call comes from the owner of a job (its key) or of an admission (its token).
type Secret [16]byte

// Random generates identifiers of instances, and secrets.
type Random struct{ from io.Reader }

// NewRandom uses the given source; nil means crypto/rand.
func NewRandom(from io.Reader) Random {
	if from == nil {
		from = rand.Reader // never fails
	}
	return Random{from}
}

func (r Random) fill(b []byte) {
	if _, err := io.ReadFull(r.from, b); err != nil {
		panic("access: the source of random numbers has ended: " + err.Error())
	}
}

// Uint64 returns a random number, for example the identifier of an instance.
func (r Random) Uint64() uint64 {
	var b [8]byte
	r.fill(b[:])
	return binary.LittleEndian.Uint64(b[:])
}

// Secret returns a new secret.
func (r Random) Secret() (s Secret) {
	r.fill(s[:])
	return s
}

// Matches reports whether the secret was shown. It compares in constant time.
func (s *Secret) Matches(shown []byte) bool { return subtle.ConstantTimeCompare(s[:], shown) == 1 }
