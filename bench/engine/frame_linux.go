package engine

import "github.com/libra-ina/libra/wire"

// testPort is the UDP source and destination port of every frame of a test.
const testPort = 9119

// buildFrame makes a frame of size bytes between the ends of the cable. Its UDP
// checksum is zero, which means absent: no program computes one.
func buildFrame(from, to wire.Endpoint, size int) ([]byte, error) {
	envelope, err := wire.NewEnvelope(from, to)
	if err != nil {
		return nil, err
	}
	frame := make([]byte, size)
	for i := range frame[envelope.Len():] {
		frame[envelope.Len()+i] = byte(i)
	}
	envelope.Seal(frame)
	frame[envelope.Len()-2], frame[envelope.Len()-1] = 0, 0
	return frame, nil
}

// turnRound exchanges the MAC addresses of a frame.
func turnRound(frame []byte) {
	var mac [6]byte
	copy(mac[:], frame[0:6])
	copy(frame[0:6], frame[6:12])
	copy(frame[6:12], mac[:])
}
