// SPDX-License-Identifier: Apache-2.0

package codec

import (
	"bytes"
	"math/rand/v2"
	"os"
	"runtime/debug"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// walled returns memory behind which nothing can be read or written.
func walled(t *testing.T, size int) []byte {
	page := os.Getpagesize()
	size = (size + page - 1) / page * page
	memory, err := unix.Mmap(-1, 0, size+page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(memory) })
	if err := unix.Mprotect(memory[size:], unix.PROT_NONE); err != nil {
		t.Fatal(err)
	}
	return memory[:size:size]
}

// TestStaysInBounds has all slices end where memory ends: code that reads or writes 16 bytes at a
// time must not go on.
func TestStaysInBounds(t *testing.T) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	const most = 300
	inValues, inCodes := walled(t, 4*most), walled(t, MaxLen(most))
	outValues, outCodes := walled(t, 4*most), walled(t, MaxLen(most))
	last := func(memory []byte, n int) []float32 {
		if n == 0 {
			return nil
		}
		return unsafe.Slice((*float32)(unsafe.Pointer(&memory[len(memory)-4*n])), n)
	}
	r := rand.New(rand.NewPCG(4, 4))
	for i := range 4000 {
		n := r.IntN(most + 1)
		values := last(inValues, n)
		if i%2 == 0 {
			copy(values, gradients(uint64(i), n, r.Float64(), 0.02))
		} else {
			copy(values, widelySpread(r, n))
		}
		c := made(t, Config{Bound: 1 + r.IntN(14)})
		coded := c.Append(outCodes[len(outCodes)-MaxLen(n):][:0], values)
		if want := c.Plain().Append(nil, values); !bytes.Equal(coded, want) {
			t.Fatalf("%d values: %x, want %x", n, coded, want)
		}
		for _, length := range []int{len(coded), r.IntN(len(coded) + 1)} {
			in := inCodes[len(inCodes)-length:]
			copy(in, coded)
			err, want := c.Decode(last(outValues, n), in), length == len(coded)
			if (err == nil) != want {
				t.Fatalf("%d values of %d of %d bytes: %v", n, length, len(coded), err)
			}
		}
	}
}
