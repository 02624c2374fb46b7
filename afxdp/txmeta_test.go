// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp

import (
	"encoding/binary"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/internal/linux/testbed"
)

func TestTxChecksumAndTimestamp(t *testing.T) {
	p := newPair(t, UMEMConfig{TxMetadata: true, SoftwareChecksum: true}, Config{})
	u := p.a.UMEM()
	packet := udpPacket(false, false, 9000, func(ip []byte) { ip[15], ip[19] = 1, 2 })
	for i := 42; i < len(packet); i++ {
		packet[i] = byte(i)
	}
	const udp, field = 34, 6
	binary.BigEndian.PutUint16(packet[udp+4:], uint16(len(packet)-udp))
	// The initial value of the sum: the pseudo header, not complemented.
	pseudo := sum16(packet[26:34], 17+uint32(len(packet)-udp))
	binary.BigEndian.PutUint16(packet[udp+field:], pseudo)

	f, _ := p.a.Pool().Alloc()
	d := Desc{Frame: f, Off: 256, Len: uint32(len(packet)), Flags: WithTxMeta}
	copy(u.Packet(d), packet)
	m := u.TxMeta(d)
	m.Reset()
	m.RequestChecksum(udp, field)
	m.RequestTimestamp()
	before := tai(t)
	transmit(t, p.a, []Desc{d})
	after := tai(t)
	if ts := int64(m.Timestamp()); ts < before || ts > after {
		t.Errorf("transmission at %d, not within [%d, %d]", ts, before, after)
	}

	if ev, err := p.b.Poll(EventRx, eventLimit); ev != EventRx || err != nil {
		t.Fatal(ev, err)
	}
	var got [1]Desc
	if n, err := p.b.Receive(got[:]); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	if sum := sum16(p.b.UMEM().Packet(got[0])[udp:], uint32(sum16(packet[26:34], 17+uint32(len(packet)-udp)))); sum != 0xffff {
		t.Errorf("UDP checksum does not add up: %#x", sum)
	}
}

// tai is the clock of copy mode's timestamps, in nanoseconds.
func tai(t *testing.T) int64 {
	t.Helper()
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_TAI, &now); err != nil {
		t.Fatal(err)
	}
	return now.Nano()
}

// sum16 is the ones' complement sum of RFC 1071, not complemented.
func sum16(b []byte, sum uint32) uint16 {
	for i := 0; i+1 < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	if len(b)%2 == 1 {
		sum += uint32(b[len(b)-1]) << 8
	}
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	return uint16(sum)
}

// A request that the kernel refuses would block the ring for ever, so Send
// refuses it first.
func TestTxMetaIsChecked(t *testing.T) {
	s, _ := newSim(t, simConfig{frames: 4, ring: 4, txMeta: true})
	f, _ := s.Pool().Alloc()
	good := Desc{Frame: f, Off: 64, Len: 100, Flags: WithTxMeta}
	m := s.UMEM().TxMeta(good)
	for name, c := range map[string]struct {
		prepare func()
		desc    Desc
	}{
		"rubbish":            {func() { m[7] = 1 }, good},
		"checksum beyond":    {func() { m.RequestChecksum(90, 9) }, good},
		"no room":            {func() {}, Desc{Frame: f, Off: TxMetaSize - 1, Len: 100}},
		"no room, requested": {func() {}, Desc{Frame: f, Off: TxMetaSize - 1, Len: 100, Flags: WithTxMeta}},
	} {
		m.Reset()
		c.prepare()
		_, err := s.Send([]Desc{c.desc})
		t.Run(name, func(t *testing.T) { wantErr(t, err, ErrDescriptor) })
	}
	m.Reset()
	m.RequestChecksum(90, 8)
	m.RequestLaunchTime(1)
	if n, err := s.Send([]Desc{good}); n != 1 || err != nil {
		t.Errorf("valid request: %d, %v", n, err)
	}
	// Without the configuration there is no place for requests.
	plain, _ := newSim(t, simConfig{frames: 4, ring: 4})
	f, _ = plain.Pool().Alloc()
	_, err := plain.Send([]Desc{{Frame: f, Off: 64, Len: 100, Flags: WithTxMeta}})
	wantErr(t, err, ErrDescriptor)
}

// How kernels treat a UMEM with TX metadata: those before 6.8 would accept it without reading its
// size, and then refuse each packet that has any.
func TestTxMetadataAsKernelsKnowIt(t *testing.T) {
	checksLength := func(length uint32) error {
		if length%8 != 0 {
			return unix.EINVAL
		}
		return nil
	}
	for name, c := range map[string]struct {
		kernel   func(flags, length uint32) error
		checksum bool
		feature  bool // lacks it
		length   uint32
	}{
		"6.18": {kernel: func(flags, length uint32) error {
			if flags&umemTxMetadataLen == 0 {
				t.Error("registered without metadata")
			}
			return checksLength(length)
		}, length: TxMetaSize},
		"6.8": {kernel: func(flags, length uint32) error {
			if flags&umemTxMetadataLen != 0 {
				return unix.EINVAL
			}
			return checksLength(length)
		}, length: TxMetaSize},
		"6.8, checksum": {checksum: true, kernel: func(flags, length uint32) error {
			if flags != umemTxSwChecksum {
				return unix.EINVAL
			}
			return checksLength(length)
		}, length: TxMetaSize},
		"6.1": {feature: true, kernel: func(flags, _ uint32) error {
			if flags != 0 {
				return unix.EINVAL
			}
			return nil
		}},
		"6.1, checksum": {feature: true, checksum: true, kernel: func(flags, _ uint32) error {
			if flags != 0 {
				return unix.EINVAL
			}
			return nil
		}},
	} {
		t.Run(name, func(t *testing.T) {
			u := &UMEM{txMeta: TxMetaSize, cfg: UMEMConfig{TxMetadata: true, SoftwareChecksum: c.checksum}}
			var got uint32
			err := u.registerWith(func(flags, length uint32) error {
				err := c.kernel(flags, length)
				if err == nil {
					got = length
				}
				return err
			})
			var feature *FeatureError
			if lacks := errors.As(err, &feature); lacks != c.feature || (err != nil && !lacks) {
				t.Errorf("%v, want a FeatureError: %v", err, c.feature)
			}
			if err == nil && got != c.length {
				t.Errorf("registered with %d bytes of metadata, want %d", got, c.length)
			}
		})
	}
}

// A UMEM without metadata is registered at the first try, as on every kernel.
func TestNoTxMetadata(t *testing.T) {
	u := &UMEM{cfg: UMEMConfig{SoftwareChecksum: true}}
	calls := 0
	err := u.registerWith(func(flags, length uint32) error {
		if calls++; flags != 0 || length != 0 {
			t.Errorf("registered with flags %b and %d bytes of metadata", flags, length)
		}
		return unix.EINVAL
	})
	if !errors.Is(err, unix.EINVAL) || errors.Is(err, errors.ErrUnsupported) || calls != 1 {
		t.Errorf("%v after %d calls, want the kernel's error after 1", err, calls)
	}
}

// Either the kernel has the feature, and a frame with a request completes, or Open refuses it.
func TestTxMetadataOrAnError(t *testing.T) {
	ns := newNet(t, testbed.VethConfig{})
	s, err := tryOpen(ns, newPool(t, newUMEM(t, UMEMConfig{TxMetadata: true}), 0), Config{Interface: "a"})
	var feature *FeatureError
	if errors.As(err, &feature) {
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	d := newPackets(t, s, 0, 1, 100)
	d[0].Flags = WithTxMeta
	m := s.UMEM().TxMeta(d[0])
	m.Reset()
	m.RequestTimestamp()
	transmit(t, s, d)
}

// A kernel that refuses the space for metadata is distinguished from one that refuses the memory.
func TestRefusedTxMetadata(t *testing.T) {
	ns := newNet(t, testbed.VethConfig{})
	u := newUMEM(t, UMEMConfig{Frames: 64, TxMetadata: true})
	pool := newPool(t, u, 0)
	open := func() error {
		_, err := Open(pool, Config{Interface: "a"})
		return err
	}
	for errno, c := range map[unix.Errno]struct {
		want  error
		words string
	}{
		unix.EINVAL: {errors.ErrUnsupported, "TX metadata needs Linux 6.8"},
		unix.EDOM:   {unix.EDOM, "afxdp: register UMEM of 64 frames of 2048 bytes: "},
	} {
		refused(t, ns, errno.Error(), c.want, c.words, open, setsockopt(unix.SOL_XDP, unix.XDP_UMEM_REG, errno))
		if diff := cmp.Diff(Census{Free: 64}, u.Census()); diff != "" {
			t.Errorf("%v (-want +got):\n%s", errno, diff)
		}
	}
}
