// SPDX-License-Identifier: Apache-2.0

package testbed

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/internal/linux/sys"
)

const patience = 2 * time.Minute // for operations that take microseconds where the machine is not busy

// readFeature reads a feature by one of ethtool's ETHTOOL_G... commands.
func readFeature(name string, cmd uint32) (bool, error) {
	value := struct{ cmd, data uint32 }{cmd: cmd}
	if err := sys.Ethtool(name, unsafe.Pointer(&value)); err != nil {
		return false, err
	}
	return value.data != 0, nil
}

// readSysfs returns an attribute of an interface, or the names in a directory.
func readSysfs(name, attribute string) (string, error) {
	f, err := sys.OpenAttr(name, attribute, unix.O_RDONLY)
	if err != nil {
		return "", err
	}
	defer f.Close()
	if entries, err := f.ReadDir(-1); err == nil {
		var names []string
		for _, e := range entries {
			names = append(names, e.Name())
		}
		return strings.Join(names, " "), nil
	}
	text, err := io.ReadAll(f)
	return strings.TrimSpace(string(text)), err
}

// device is the expected state of an interface.
type device struct {
	MAC      string
	MTU      int
	Addrs    string
	Queues   int // transmit and receive queues together
	Threaded string
	TXCsum   bool
	GRO      bool
}

func readDevice(name string) (device, error) {
	ifi, err := net.InterfaceByName(name)
	if err != nil {
		return device{}, err
	}
	addrs, err := ifi.Addrs()
	if err != nil {
		return device{}, err
	}
	d := device{MAC: ifi.HardwareAddr.String(), MTU: ifi.MTU}
	for _, a := range addrs {
		d.Addrs += a.String()
	}
	queues, err := readSysfs(name, "queues")
	if err != nil {
		return device{}, err
	}
	d.Queues = len(strings.Fields(queues))
	if d.Threaded, err = readSysfs(name, "threaded"); err != nil {
		return device{}, err
	}
	if d.TXCsum, err = readFeature(name, unix.ETHTOOL_GTXCSUM); err != nil {
		return device{}, err
	}
	d.GRO, err = readFeature(name, unix.ETHTOOL_GGRO)
	return d, err
}

func TestBedIsBuiltAsConfigured(t *testing.T) {
	for _, cfg := range []Config{
		{},
		{Hosts: 3, Queues: 4, MTU: 9000, Prefix: netip.MustParsePrefix("10.99.3.16/28"), ThreadedNAPI: true, StaticARP: true},
	} {
		t.Run(fmt.Sprintf("%+v", cfg), func(t *testing.T) {
			bed := newBed(t, cfg)
			cfg, err := cfg.withDefaults()
			if err != nil {
				t.Fatal(err)
			}
			if len(bed.Hosts()) != cfg.Hosts {
				t.Fatalf("%d hosts, want %d", len(bed.Hosts()), cfg.Hosts)
			}
			sw := bed.Switch()
			check := func(n *Node, name string, want device) {
				t.Helper()
				err := n.Do(func() error {
					got, err := readDevice(name)
					if diff := cmp.Diff(want, got); err == nil && diff != "" {
						t.Errorf("%s in %s (-want +got):\n%s", name, n.Name, diff)
					}
					return err
				})
				if err != nil {
					t.Errorf("%s in %s: %v", name, n.Name, err)
				}
			}
			veth := device{MTU: cfg.MTU, Queues: 2 * cfg.Queues, Threaded: "0", GRO: true}
			if cfg.ThreadedNAPI {
				veth.Threaded = "1"
			}
			for i, host := range bed.Hosts() {
				if want := fmt.Sprintf("host%d", i); host.Name != want || host.Interface != want {
					t.Errorf("host %d is %s with %s, want %s", i, host.Name, host.Interface, want)
				}
				at := veth
				at.MAC, at.Addrs = host.MAC.String(), netip.PrefixFrom(host.IP, cfg.Prefix.Bits()).String()
				check(host, host.Interface, at)
				at.MAC, at.Addrs = host.PortMAC.String(), ""
				check(sw, host.PortName, at)
			}
			err = sw.Do(func() error {
				for _, host := range bed.Hosts() {
					if port, err := net.InterfaceByName(host.PortName); err != nil || port.Index != host.PortIndex {
						t.Errorf("%s: index %v (%v), want %d", host.PortName, port, err, host.PortIndex)
					}
				}
				bridge, err := net.InterfaceByName(sw.Interface)
				if err != nil {
					return err
				}
				addrs, err := bridge.Addrs()
				want := fmt.Sprintf("[%s/%d]", sw.IP, cfg.Prefix.Bits())
				if got := fmt.Sprint(addrs); got != want || bridge.MTU != cfg.MTU || !bytes.Equal(bridge.HardwareAddr, sw.MAC) {
					t.Errorf("bridge has %s, MTU %d, %s; want %s, MTU %d, %s",
						got, bridge.MTU, bridge.HardwareAddr, want, cfg.MTU, sw.MAC)
				}
				return err
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
}

// listenUDP opens a socket at a node's address.
func listenUDP(t *testing.T, n *Node) *net.UDPConn {
	t.Helper()
	var conn *net.UDPConn
	err := n.Do(func() (err error) {
		conn, err = net.ListenUDP("udp4", &net.UDPAddr{IP: n.IP.AsSlice()})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	return conn
}

func addrPort(c *net.UDPConn) netip.AddrPort {
	return c.LocalAddr().(*net.UDPAddr).AddrPort()
}

// sendUDP sends payload and checks the received one.
func sendUDP(t *testing.T, from, to *net.UDPConn, payload []byte) {
	t.Helper()
	if _, err := from.WriteToUDPAddrPort(payload, addrPort(to)); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 1<<16)
	n, src, err := to.ReadFromUDPAddrPort(buf)
	if err != nil {
		t.Fatal(err)
	}
	if src != addrPort(from) || !bytes.Equal(buf[:n], payload) {
		t.Errorf("got %d bytes from %v, want %d from %v", n, src, len(payload), addrPort(from))
	}
}

func TestNodesReachEachOther(t *testing.T) {
	for _, cfg := range []Config{
		{Hosts: 3, Queues: 2, ThreadedNAPI: true},
		{Hosts: 3, Above: []int{0, 1, 0}, At: []int{3, 0, 2}, StaticARP: true},
	} {
		checkReach(t, cfg)
	}
}

// checkReach sends a datagram from each node to each other.
func checkReach(t *testing.T, cfg Config) {
	t.Helper()
	bed := newBed(t, cfg)
	nodes := bed.nodes()
	conns := make([]*net.UDPConn, len(nodes))
	for i, n := range nodes {
		conns[i] = listenUDP(t, n)
	}
	full := bytes.Repeat([]byte("libra"), (DefaultMTU-28)/5)
	for _, from := range conns {
		for _, to := range conns {
			if from != to {
				sendUDP(t, from, to, []byte("ping"))
				sendUDP(t, from, to, full)
			}
		}
	}
}

func TestTCPBetweenHosts(t *testing.T) {
	bed := newBed(t, Config{})
	var listener net.Listener
	err := bed.Host(0).Do(func() (err error) {
		listener, err = net.Listen("tcp4", netip.AddrPortFrom(bed.Host(0).IP, 0).String())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	sent := bytes.Repeat([]byte("0123456789"), 100_000)
	result := make(chan error, 1)
	go func() {
		result <- bed.Host(1).Do(func() error {
			conn, err := net.Dial("tcp4", listener.Addr().String())
			if err != nil {
				return err
			}
			_, err = conn.Write(sent)
			return errors.Join(err, conn.Close())
		})
	}()
	conn, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	got, err := io.ReadAll(conn)
	if err != nil || !bytes.Equal(got, sent) {
		t.Errorf("received %d bytes (%v), want %d", len(got), err, len(sent))
	}
	if err := <-result; err != nil {
		t.Error(err)
	}
}

func TestMTUIsEnforced(t *testing.T) {
	bed := newBed(t, Config{MTU: 1400})
	from, to := listenUDP(t, bed.Host(0)), listenUDP(t, bed.Host(1))
	raw, err := from.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var optErr error
	err = raw.Control(func(fd uintptr) {
		optErr = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO)
	})
	if err := errors.Join(err, optErr); err != nil {
		t.Fatal(err)
	}
	const headers = 20 + 8 // IPv4, UDP
	sendUDP(t, from, to, make([]byte, 1400-headers))
	if _, err := from.WriteToUDPAddrPort(make([]byte, 1400-headers+1), addrPort(to)); !errors.Is(err, unix.EMSGSIZE) {
		t.Errorf("one byte more than the MTU: %v, want EMSGSIZE", err)
	}
}

// With static ARP and without IPv6 only sent frames cross a cable, and the UDP checksum of a kernel
// socket is complete when an XDP program on the other side sees it.
func TestCableCarriesOnlyWhatIsSent(t *testing.T) {
	bed := newBed(t, Config{StaticARP: true})
	sniffer := listenPacket(t, bed.Switch(), bed.Host(0).PortName)
	a, b := listenUDP(t, bed.Host(0)), listenUDP(t, bed.Host(1))
	var want []string
	for i := range 3 {
		text := fmt.Sprintf("odd length %d", i)
		sendUDP(t, a, b, []byte(text))
		sendUDP(t, b, a, []byte(text))
		want = append(want, "out "+text, "in "+text)
	}

	var got []string
	buf := make([]byte, 1<<16)
	for range want {
		n, _, err := unix.Recvfrom(sniffer, buf, 0)
		if err != nil {
			t.Fatalf("after %q: %v", got, err)
		}
		packet := gopacket.NewPacket(buf[:n], layers.LayerTypeEthernet, gopacket.Default)
		udp, ok := packet.TransportLayer().(*layers.UDP)
		if !ok {
			t.Fatalf("foreign frame: %v", packet)
		}
		checkSums(t, packet, udp)
		direction := "out "
		if eth := packet.LinkLayer().(*layers.Ethernet); bytes.Equal(eth.DstMAC, bed.Host(0).MAC) {
			direction = "in "
		}
		got = append(got, direction+string(udp.Payload))
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if n, _, err := unix.Recvfrom(sniffer, buf, unix.MSG_DONTWAIT); !errors.Is(err, unix.EAGAIN) {
		t.Errorf("one frame more: % x, %v", buf[:max(n, 0)], err)
	}
}

// checkSums recomputes a packet's UDP checksum.
func checkSums(t *testing.T, packet gopacket.Packet, udp *layers.UDP) {
	t.Helper()
	fresh := *udp
	if err := fresh.SetNetworkLayerForChecksum(packet.NetworkLayer()); err != nil {
		t.Fatal(err)
	}
	buf := gopacket.NewSerializeBuffer()
	err := gopacket.SerializeLayers(buf, gopacket.SerializeOptions{ComputeChecksums: true}, &fresh, gopacket.Payload(udp.Payload))
	if err != nil {
		t.Fatal(err)
	}
	if fresh.Checksum != udp.Checksum {
		t.Errorf("UDP checksum %#04x on the cable, want %#04x", udp.Checksum, fresh.Checksum)
	}
}

// listenPacket opens a socket that sees every frame of an interface.
func listenPacket(t *testing.T, n *Node, iface string) int {
	t.Helper()
	fd := -1
	err := n.Do(func() error {
		ifi, err := net.InterfaceByName(iface)
		if err != nil {
			return err
		}
		const allProtocols = unix.ETH_P_ALL<<8&0xff00 | unix.ETH_P_ALL>>8 // network byte order
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		timeout := unix.NsecToTimeval(patience.Nanoseconds())
		return errors.Join(
			unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout),
			unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: allProtocols, Ifindex: ifi.Index}),
		)
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	return fd
}
