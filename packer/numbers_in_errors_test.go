// SPDX-License-Identifier: Apache-2.0

package packer

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/libra-ina/libra/wire"
)

// TestFingerprintIsOfAllKeys compares with the hash of the fields that its comment lists, for sets
// smaller and larger than the buffer.
func TestFingerprintIsOfAllKeys(t *testing.T) {
	for _, n := range []int{1, 1021, 1022, 1023, 1024, 3000} {
		keys := make([]uint64, n)
		b := binary.BigEndian.AppendUint64(nil, 3)
		b = binary.BigEndian.AppendUint64(b, uint64(n))
		for i := range keys {
			keys[i] = uint64(i) * 0x9e3779b97f4a7c15
			b = binary.BigEndian.AppendUint64(b, keys[i])
		}
		h, err := NewHotSet(3, keys, make([]uint64, n), Meta{})
		if err != nil {
			t.Fatal(err)
		}
		if got, want := h.Fingerprint(), Fingerprint(sha256.Sum256(b)); got != want {
			t.Errorf("%d keys: %v, want %v", n, got, want)
		}
	}
}

// TestHotSetFileSizes reads files that announce sizes at and beyond the limits.
func TestHotSetFileSizes(t *testing.T) {
	whole := encode(t, mustHotSet(t, 1, 7))
	for _, c := range []struct {
		keys uint64
		dim  uint32
		want error
	}{
		{1, 1, nil}, {1, maxDim, nil}, {0, 1, ErrCorrupt},
		{1, 0, ErrHotSet}, {1, maxDim + 1, ErrHotSet},
		{maxHotKeys, 1, ErrCorrupt}, {maxHotKeys + 1, 1, ErrHotSet}, {maxHotKeys + 1, 0, ErrHotSet},
	} {
		file := append([]byte(nil), whole...)
		binary.BigEndian.PutUint32(file[12:], c.dim)
		binary.BigEndian.PutUint64(file[16:], c.keys)
		_, err := ReadHotSet(strings.NewReader(string(reseal(file))))
		if !errors.Is(err, c.want) {
			t.Errorf("%d keys of dimension %d: %v, want %v", c.keys, c.dim, err, c.want)
		}
	}
}

// TestNumbersInErrors checks the numbers in errors.
func TestNumbersInErrors(t *testing.T) {
	_, stripes := New(Config{Dim: 1, Stripes: wire.MaxStripes + 1})
	_, dimension := NewHotSet(maxDim+1, nil, nil, Meta{})
	_, keys := NewHotSet(1, make([]uint64, maxHotKeys+1), nil, Meta{})
	_, counts := NewHotSet(1, make([]uint64, 2), make([]uint64, 3), Meta{})
	for want, err := range map[string]error{
		fmt.Sprintf("row dimension %d is not in [1, %d]", maxDim+1, maxDim): dimension,
		"16777216 keys; the limit is 16777215":                              keys,
		"3 counts for 2 keys":                                               counts,
		"26 stripes a frame, possible are 1 to 25":                          stripes,
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
