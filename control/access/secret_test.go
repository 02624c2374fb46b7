// SPDX-License-Identifier: Apache-2.0

package access

import (
	"io"
	"testing"
)

// Without random numbers there are no secrets, instead of guessable ones.
func TestNoSecretsWithoutRandomNumbers(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("a secret was made of nothing")
		}
	}()
	NewRandom(eof{}).Secret()
}

type eof struct{}

func (eof) Read([]byte) (int, error) { return 0, io.EOF }
