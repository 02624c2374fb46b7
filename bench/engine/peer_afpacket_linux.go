//go:build cgo

package engine

import (
	"errors"
	"math/bits"

	"github.com/google/gopacket/afpacket"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// afpacketPeer is AF_PACKET with TPACKET_V3 through gopacket: it reads from a ring
// of blocks that is shared with the kernel, and sends each frame with a system call.
type afpacketPeer struct {
	cfg   *peerConfig
	ring  *afpacket.TPacket
	frame []byte
}

// hasAFPacket says that the peer is built in.
const hasAFPacket = true

// afpacketBlock is how many frames a block holds at least. The kernel hands
// a block over when it is full or after a millisecond, so blocks have to be much smaller
// than the window of an echo.
const afpacketBlock = 16

func openAFPacket(cfg *peerConfig) (peer, error) {
	// The ring's headers before each frame take less than 128 bytes.
	block := max(4096, 1<<bits.Len(uint(afpacketBlock*(cfg.size+128)-1)))
	ring, err := afpacket.NewTPacket(
		afpacket.OptInterface(cfg.iface), afpacket.TPacketVersion3,
		afpacket.OptFrameSize(4096), afpacket.OptBlockSize(block), afpacket.OptNumBlocks(ringSize*4096/block),
		afpacket.OptBlockTimeout(1e6), afpacket.OptPollTimeout(idle),
	)
	if err != nil {
		return nil, err
	}
	p := &afpacketPeer{cfg: cfg, ring: ring, frame: append([]byte(nil), cfg.frame...)}
	if err := p.filter(); err != nil {
		ring.Close()
		return nil, err
	}
	return p, nil
}

// filter admits frames of the test's length, so that nothing else is counted or sent back.
func (p *afpacketPeer) filter() error {
	program, err := bpf.Assemble([]bpf.Instruction{
		bpf.LoadExtension{Num: bpf.ExtLen},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: uint32(p.cfg.size), SkipFalse: 1},
		bpf.RetConstant{Val: 1 << 18},
		bpf.RetConstant{Val: 0},
	})
	if err != nil {
		return err
	}
	return p.ring.SetBPF(program)
}

func (p *afpacketPeer) send() error { return p.write(p.frame) }

// write sends a frame; a full queue drops it.
func (p *afpacketPeer) write(frame []byte) error {
	err := p.ring.WritePacketData(frame)
	var errno unix.Errno
	if errors.As(err, &errno) {
		return passing(errno)
	}
	return err
}

// take reads a frame; it returns nil if none came in time. The bytes are the ring's.
func (p *afpacketPeer) take() ([]byte, error) {
	data, _, err := p.ring.ZeroCopyReadPacketData()
	if errors.Is(err, afpacket.ErrTimeout) {
		return nil, nil
	}
	return data, err
}

func (p *afpacketPeer) receive() (int, error) {
	data, err := p.take()
	if data == nil {
		return 0, err
	}
	return 1, nil
}

func (p *afpacketPeer) seed(n int) error {
	for range n {
		if err := p.send(); err != nil {
			return err
		}
	}
	return nil
}

func (p *afpacketPeer) bounce() (int, error) {
	data, err := p.take()
	if data == nil {
		return 0, err
	}
	turnRound(data)
	return 1, p.write(data)
}

func (p *afpacketPeer) request() (bool, error) {
	if err := p.send(); err != nil {
		return false, err
	}
	n, err := p.receive()
	return n > 0, err
}

func (p *afpacketPeer) drops() (map[string]uint64, error) {
	_, v3, err := p.ring.SocketStats()
	return map[string]uint64{"socket: ring full": uint64(v3.Drops())}, err
}

func (p *afpacketPeer) close() error {
	p.ring.Close()
	return nil
}
