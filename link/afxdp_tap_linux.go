// SPDX-License-Identifier: Apache-2.0

package link

import "github.com/libra-ina/libra/afxdp"

// showFrames copies a batch of frames in the UMEM to the listeners: received frames, or sealed
// frames in the TX ring before the kick, so that they are seen before their answers.
func (l *afxdpLink) showFrames(d Direction, descs []afxdp.Desc) {
	if len(descs) == 0 {
		return
	}
	b, listening := l.tap.beginBatch()
	if !listening {
		return
	}
	for _, desc := range descs {
		b.addFrame(d, l.umem.Packet(desc))
	}
	b.endBatch()
}

func (l *afxdpLink) tappedLink() *Tap { return l.tap }
