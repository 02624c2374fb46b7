package control

import (
	"crypto/rand"
	"crypto/subtle"
)

// secret proves that a call comes from the owner of a job (its key) or of an
// admission (its token).
type secret [16]byte

func newSecret() (s secret) {
	rand.Read(s[:]) // never fails
	return s
}

// is compares in constant time.
func (s *secret) is(shown []byte) bool { return subtle.ConstantTimeCompare(s[:], shown) == 1 }
