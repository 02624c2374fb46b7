//go:build !cgo

package engine

// hasAFPacket says that the peer is not built in: gopacket's afpacket needs cgo.
const hasAFPacket = false

func openAFPacket(*peerConfig) (peer, error) { return nil, errNoTest }
