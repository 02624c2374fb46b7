// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"net/netip"
	"os/exec"
	"slices"

	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/control"
	"github.com/libra-ina/libra/internal/linux/testbed"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/wire"
)

// bed is where the processes of a demo run.
type bed struct {
	net   *testbed.Bed // nil for the udp backend
	ports []string     // interfaces of the switch
}

// openBed creates the hosts of a cluster and enters their addresses in its configuration:
// namespaces joined by a switch for the afxdp backend, loopback addresses for the udp backend.
func openBed(ctx context.Context, c *cluster.Config, workers int) (*bed, error) {
	if c.Backend == cluster.BackendUDP {
		return &bed{}, loopback(c, workers)
	}
	return openNetwork(ctx, c, workers)
}

// openNetwork is openBed with namespaces, whatever the backend.
func openNetwork(ctx context.Context, c *cluster.Config, workers int) (*bed, error) {
	servers := len(c.AllServers())
	b, err := testbed.New(ctx, testbed.Config{Hosts: servers + workers, Unbridged: c.Switch.Plane == cluster.PlaneP4,
		Above: above(c), At: placeOf(c, servers, workers)})
	if errors.Is(err, fs.ErrPermission) && c.Switch.Plane != cluster.PlaneP4 {
		err = fmt.Errorf("%w\n(--backend udp needs no privileges)", err)
	}
	if err != nil {
		return nil, err
	}
	sw := b.Switch()
	c.Switch.Address = sw.IP
	c.Switch.Control = netip.AddrPortFrom(sw.IP, controlPort)
	ports := slices.Clone(sw.Ports())
	switch {
	case c.Switch.Plane == cluster.PlaneP4:
		ports = append(ports, testbed.UplinkName)
		placeHosts(&c.Switch.P4, append(b.Hosts(), sw))
	case c.Backend == cluster.BackendAFXDP:
		c.Switch.Interfaces = ports
	}
	for i := range c.Switches {
		n, s := b.Switches()[i], &c.Switches[i]
		s.Address = n.IP
		if i > 0 {
			s.Control = netip.AddrPortFrom(n.IP, controlPort)
		}
		if i > 0 && c.Backend == cluster.BackendAFXDP {
			s.Interfaces = n.Ports()
		}
	}
	for i := range servers {
		h, server := b.Host(i), &c.Server
		if len(c.Servers) > 0 {
			server = &c.Servers[i]
		}
		server.Host = hostOf(c, h)
		server.Control = netip.AddrPortFrom(h.IP, controlPort)
	}
	for i := 1; i <= workers; i++ {
		h := b.Host(servers - 1 + i)
		c.Workers = append(c.Workers, cluster.Worker{ID: uint16(i), Host: hostOf(c, h)})
	}
	setSwitches(c)
	return &bed{net: b, ports: ports}, nil
}

// hostOf returns a node of the network as a cluster file describes it.
func hostOf(c *cluster.Config, n *testbed.Node) cluster.Host {
	if c.Backend == cluster.BackendUDP {
		return cluster.Host{Address: n.IP}
	}
	return cluster.Host{Address: n.IP, Interface: n.Interface}
}

// stripes returns the number of stripes of a demo's hot frames. With many workers' batches in
// flight, more is better, and the interfaces of a bed accept the longest frames
// ([testbed.DefaultMTU]). With barriers every step waits for its last frame, and longer ones take a
// little longer. 0 is the default of cluster files.
func (o Options) stripes() int {
	switch {
	case o.LaneAligned:
		return 1
	case o.Backend == cluster.BackendAFXDP && o.Plane == "" && !o.Sync:
		return wire.MaxStripes
	}
	return 0
}

// giveRoom gives the switch the slots that its only job takes, if those are more than the default.
// A P4 switch has what it has.
func giveRoom(c *cluster.Config, hot *packer.HotSet) {
	if c.Job.Plan == "" { // otherwise each switch has what plans may use
		giveSlots(c, hot.Slots())
	}
}

// giveSlots gives the switch that many slots, if those are more than the default.
func giveSlots(c *cluster.Config, slots int) {
	if slots > control.DefaultSlots && c.Switch.Plane != cluster.PlaneP4 {
		c.Switch.Slots = slots
	}
}

const controlPort = 7700

// loopback gives every process its own address in 127.0.0.0/8, because an address identifies a
// sender over UDP.
func loopback(c *cluster.Config, workers int) error {
	address := func(host int) netip.Addr { return netip.AddrFrom4([4]byte{127, 76, 66, byte(host)}) }
	c.Switch.Address = address(1)
	controls := map[netip.Addr]*netip.AddrPort{c.Switch.Address: &c.Switch.Control}
	servers := make([]*cluster.Server, len(c.AllServers()))
	for i := range servers {
		if servers[i] = &c.Server; len(c.Servers) > 0 {
			servers[i] = &c.Servers[i]
		}
	}
	for i, s := range servers {
		s.Address = address(2 + i)
		controls[s.Address] = &s.Control
	}
	for i := 1; i <= workers; i++ {
		c.Workers = append(c.Workers, cluster.Worker{ID: uint16(i),
			Host: cluster.Host{Address: address(1 + len(servers) + i)}})
	}
	port, err := freePort("udp", c.Switch.Address)
	if err != nil {
		return err
	}
	c.Port = port
	for i := range c.Switches {
		s := &c.Switches[i]
		if s.Address = c.Switch.Address; i > 0 {
			s.Address = address(1 + len(servers) + workers + i)
			controls[s.Address] = &s.Control
		}
	}
	setSwitches(c)
	for addr, control := range controls {
		port, err := freePort("tcp", addr)
		if err != nil {
			return err
		}
		*control = netip.AddrPortFrom(addr, port)
	}
	return nil
}

// freePort returns an unused port.
func freePort(network string, addr netip.Addr) (uint16, error) {
	local := netip.AddrPortFrom(addr, 0)
	if network == "udp" {
		conn, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(local))
		if err != nil {
			return 0, fmt.Errorf("demo: no free UDP port on %v: %w", addr, err)
		}
		defer conn.Close()
		return conn.LocalAddr().(*net.UDPAddr).AddrPort().Port(), nil
	}
	l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(local))
	if err != nil {
		return 0, fmt.Errorf("demo: no free TCP port on %v: %w", addr, err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).AddrPort().Port(), nil
}

// quietPort returns a TCP port that is free at all addresses, at which PyTorch listens, and below
// those that Linux gives to sockets by itself (ip_local_port_range): rank 0 may be seconds away
// from listening.
func quietPort() (port uint16, err error) {
	const first, end, attempts = 20_000, 32_768, 100
	for range attempts {
		port = uint16(first + rand.IntN(end-first))
		var l net.Listener
		if l, err = net.Listen("tcp", fmt.Sprintf(":%d", port)); err == nil {
			return port, l.Close()
		}
	}
	return 0, fmt.Errorf("demo: no free TCP port between %d and %d: %w", first, end, err)
}

// startOn returns the function that starts a process on a host: -1 is the switch, -2 the one after
// it and so on; from 0 on come the servers and then the workers. It is nil if there is only one
// host.
func (b *bed) startOn(host int) func(*exec.Cmd) error {
	if b.net == nil {
		return nil
	}
	if host < 0 {
		return b.net.Switches()[-1-host].Start
	}
	return b.net.Host(host).Start
}

func (b *bed) closeBed() error {
	if b.net == nil {
		return nil
	}
	return b.net.Close()
}
