// SPDX-License-Identifier: Apache-2.0

package retransmit_test

import (
	"fmt"
	"time"

	"github.com/libra-ina/libra/retransmit"
)

// A sender loses a frame, repeats it, and the receiver applies it once
// although the network duplicates the repetition.
func Example() {
	const ms = retransmit.Time(time.Millisecond)
	window, err := retransmit.NewWindow(retransmit.Config{})
	if err != nil {
		panic(err)
	}
	var filter retransmit.Filter
	receive := func(seq uint32) {
		if filter.Fresh(seq) {
			filter.Mark(seq)
			fmt.Println("applied", seq)
		} else {
			fmt.Println("applied before", seq)
		}
	}

	seq, _ := window.Add(0, retransmit.Entry{Cookie: 4096, Len: 190})
	window.Sent(0, 1)
	// The network loses the frame. The caller sleeps until NextDeadline.
	window.Resend(21*ms, func(seq uint32, e retransmit.Entry) bool {
		fmt.Println("resend", seq, "from", e.Cookie)
		receive(seq)
		receive(seq) // the network duplicates it
		return true
	})
	e, ok := window.Ack(22*ms, seq)
	fmt.Println("free", e.Cookie, ok)
	_, ok = window.Ack(22*ms, seq)
	fmt.Println("second acknowledgement:", ok)
	// Output:
	// resend 1 from 4096
	// applied 1
	// applied before 1
	// free 4096 true
	// second acknowledgement: false
}
