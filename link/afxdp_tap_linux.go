// SPDX-License-Identifier: Apache-2.0

package link

import "github.com/libra-ina/libra/afxdp"

// show copies a batch of frames in the UMEM to the listeners: received frames, or sealed frames in
// the TX ring before the kick, so that they are seen before their answers.
func (l *afxdpLink) show(d Direction, descs []afxdp.Desc) {
	if len(descs) == 0 {
		return
	}
	b, listening := l.tap.begin()
	if !listening {
		return
	}
	for _, desc := range descs {
		b.add(d, l.umem.Packet(desc))
	}
	b.end()
}

func (l *afxdpLink) tapped() *Tap { return l.tap }
