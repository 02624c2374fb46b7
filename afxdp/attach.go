// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp

import (
	"errors"
	"fmt"
	"net"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/internal/linux/sys"
)

// AttachConfig describes how to attach an XDP program to an interface.
type AttachConfig struct {
	// Interface is the interface's name.
	Interface string
	// Mode chooses between the driver's XDP hook and the generic one.
	Mode AttachMode

	// Program is the caller's program, which the caller must close. Nil means a built-in program
	// that redirects packets to the socket of the queue on which they arrived, and passes packets
	// of queues without a socket to the kernel's stack. The fields below configure the built-in
	// program and are not used with the caller's.
	Program *ebpf.Program
	// Match selects the packets that the built-in program redirects, for example MatchUDP(9000);
	// all others pass to the kernel's stack. Required: [MatchAll] redirects every packet, including
	// ARP and SSH.
	Match Match
	// Others selects among the packets that Match does not match: those whose first match is
	// Others[i] go to the sockets in OtherXSKMap(i). This gives each socket of a shared queue
	// (Config.ShareQueue) its own packets. At most 63.
	Others []Match
	// Queues is the size of the built-in program's XSKMAPs. Default: 256.
	Queues int
	// MultiBuffer accepts packets that span several buffers.
	MultiBuffer bool
	// Hints makes the built-in program request the packet's receive time, hash and VLAN tag from
	// the driver and put them before the packet, see [UMEM.RxHints]. Native mode only; Linux 6.3.
	Hints bool
	// Stamp makes the built-in program put the kernel's time before some of the packets, those that it
	// selects, see [UMEM.RxStamp]: with any driver, in both modes. Nil: none. Not together with Hints.
	Stamp *Stamp
}

// AttachMode selects the XDP hook.
type AttachMode uint8

const (
	// AttachAuto uses native mode if the driver supports it, else generic, which has its own rules:
	// Attachment.Mode returns which it is.
	AttachAuto AttachMode = iota
	// AttachNative runs the program in the driver, before the kernel
	// allocates a socket buffer.
	AttachNative
	// AttachGeneric runs the program in the kernel's stack. It works with every driver, but costs a
	// socket buffer for every packet. The program meets packets before senders on this machine have
	// cut them into segments, and after the kernel has joined received ones, so they may exceed the
	// MTU by far: up to 64 KB, of which a frame has no room (KernelStats.RxDropped), and which
	// MultiBuffer returns in one piece. This concerns TCP, and UDP with UDP_SEGMENT or UDP_GRO. To
	// prevent it: "ethtool -K eth0 gro off lro off", and at a veth's peer "ethtool -K veth1 gso off
	// tso off tx-udp-segmentation off".
	AttachGeneric
)

func (m AttachMode) String() string {
	return [...]string{"auto", "native", "generic"}[m]
}

// Attachment is an XDP program on an interface, held by a bpf_link: it is detached when Close is
// called or when the process ends, however it ends.
//
// Under load, close it before the sockets: then packets go to the stack again instead of being
// dropped for sockets that do not answer. Sockets in zero-copy mode can send only with a program on
// the interface; while any remain, a program that passes every packet stays attached.
//
// Its methods are not safe for concurrent use.
type Attachment struct {
	cfg   AttachConfig
	index int // of the interface that it was attached to last
	hook  *hook
	mode  AttachMode
	prog  *ebpf.Program // the built-in one, nil for the caller's
	xsks  []*ebpf.Map   // maps for Match and for each of Others
}

// attached keeps every Attachment reachable until it is closed. Otherwise the garbage collector
// could close the link of an unreferenced one, and silently detach the program.
var attached sync.Map

// Attach attaches an XDP program to an interface. It never replaces an existing program: it returns
// ErrProgramAttached instead. The built-in program needs a device with Ethernet headers, which a
// tun device lacks ([FeatureError]).
func Attach(cfg AttachConfig) (*Attachment, error) {
	if cfg.Mode > AttachGeneric {
		return nil, fmt.Errorf("%w: AttachConfig.Mode %d", ErrConfig, cfg.Mode)
	}
	if p := cfg.Program; p != nil && p.Type() != ebpf.XDP {
		return nil, fmt.Errorf("%w: AttachConfig.Program is a %v program, not an XDP one", ErrConfig, p.Type())
	}
	a := &Attachment{cfg: cfg}
	if cfg.Program == nil {
		if err := cfg.checkBuiltIn(); err != nil {
			return nil, fmt.Errorf("afxdp: attach to %s: %w", cfg.Interface, err)
		}
		for range cfg.matches() {
			xsks, err := newXSKMap(cfg.Queues)
			if err != nil {
				return nil, errors.Join(err, a.closePrograms())
			}
			a.xsks = append(a.xsks, xsks)
		}
	}
	if err := a.attachLink(); err != nil {
		return nil, errors.Join(err, a.closePrograms())
	}
	attached.Store(a, nil)
	return a, nil
}

// maxOthers is the largest number of Others: each of them and Match has a map, and the kernel
// allows 64 maps per program (MAX_USED_MAPS).
const maxOthers = 63

// matches returns Match and Others.
func (c *AttachConfig) matches() []Match { return append([]Match{c.Match}, c.Others...) }

// checkBuiltIn checks the fields that configure the built-in program.
func (c *AttachConfig) checkBuiltIn() error {
	if n := len(c.Others); n > maxOthers {
		return fmt.Errorf("%w: AttachConfig.Others are %d, the kernel lets a program have %d: join some with Or, or attach a program of your own", ErrConfig, n, maxOthers)
	}
	if c.Stamp != nil {
		if c.Hints {
			return fmt.Errorf("%w: AttachConfig.Stamp and Hints would write to the same place: use one of them", ErrConfig)
		}
		if err := c.Stamp.check(); err != nil {
			return err
		}
	}
	for i, m := range c.matches() {
		name := "AttachConfig.Match"
		if i > 0 {
			name = fmt.Sprintf("AttachConfig.Others[%d]", i-1)
		}
		if err := m.Err(); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if m.op == matchAll && i < len(c.Others) {
			return fmt.Errorf("%w: %s matches every packet, and leaves none for the program after it", ErrConfig, name)
		}
	}
	return nil
}

// Reattach attaches the program again after another process has detached it, or after the interface
// was replaced by one of the same name: the old link ended with the old interface. While that
// exists in the calling thread's network namespace, it is used whatever its name is now. XSKMap
// stays the same, so Socket.Recover can follow. If it fails it may be called again.
func (a *Attachment) Reattach() error {
	if _, ok := attached.Load(a); !ok {
		return net.ErrClosed
	}
	if err := a.detachLink(); err != nil {
		return err
	}
	return a.attachLink()
}

// SetMatch replaces the built-in program's Match, without a moment in which no program is attached.
func (a *Attachment) SetMatch(m Match) error {
	if _, ok := attached.Load(a); !ok {
		return net.ErrClosed
	}
	if a.cfg.Program != nil {
		return fmt.Errorf("%w: SetMatch with a program of the caller's", ErrConfig)
	}
	cfg := a.cfg
	cfg.Match = m
	if err := cfg.checkBuiltIn(); err != nil {
		return fmt.Errorf("afxdp: match on %s: %w", cfg.Interface, err)
	}
	if a.hook == nil { // a Reattach failed; the next one uses it
		a.cfg = cfg
		return nil
	}
	prog, err := loadRedirect(cfg, a.xsks, a.index)
	if err != nil {
		return err
	}
	if err := a.hook.replaceProgram(prog); err != nil {
		return errors.Join(fmt.Errorf("afxdp: match on %s: %w", cfg.Interface, err), prog.Close())
	}
	before := a.prog
	a.cfg, a.prog = cfg, prog
	return before.Close()
}

// AttachedTo returns the index of the interface that the program is on, 0 for none: the interface
// was deleted, another process has detached the program, or a Reattach failed. An interface that
// was moved to another network namespace takes the program along.
func (a *Attachment) AttachedTo() (ifindex int, err error) { return a.attachedTo() }

// attachedTo returns the index of the program's interface, 0 for none: see hook.attachedTo.
func (a *Attachment) attachedTo() (ifindex int, err error) {
	if a.hook == nil { // a Reattach failed
		return 0, nil
	}
	return a.hook.attachedTo()
}

// detachLink closes the link, if there is one: a failed Reattach leaves none.
func (a *Attachment) detachLink() error {
	if a.hook == nil {
		return nil
	}
	err := a.hook.detachProgram()
	a.hook = nil
	if err != nil {
		return fmt.Errorf("afxdp: detach from %s: %w", a.cfg.Interface, err)
	}
	return nil
}

// attachLink loads the built-in program, unless the caller has one, and links it.
func (a *Attachment) attachLink() error {
	cfg := a.cfg
	ifi, err := a.presentInterface()
	if err != nil {
		return err
	}
	prog := cfg.Program
	if prog == nil {
		if err := needEthernet(ifi, "the built-in program", "use an Ethernet device (a tap instead of a tun), or a program of your own (AttachConfig.Program)"); err != nil {
			return err
		}
		// Loaded for each interface: a program with hints is bound to one.
		prog, err = loadRedirect(cfg, a.xsks, ifi.Index)
		switch {
		case errors.Is(err, ErrPermission) && a.prog != nil && !cfg.Hints:
			prog = a.prog // of a process that has given up its privileges
		case err != nil:
			return err
		default:
			if err := a.prog.Close(); err != nil {
				return errors.Join(err, prog.Close())
			}
			a.prog = prog
		}
	}
	ns, _ := sys.ThreadNamespaceID() // without /proc, indexes must suffice
	id := hookID{ns, ifi.Index}
	// Without a mode, the kernel selects native if the driver has the hook, but does not fall back
	// if the driver then refuses.
	flags := link.XDPDriverMode
	if cfg.Mode == AttachGeneric {
		flags = link.XDPGenericMode
	}
	h, err := takeHook(id, prog, flags)
	if err != nil && cfg.Mode == AttachAuto && !errors.Is(err, unix.EBUSY) && !errors.Is(err, unix.EEXIST) && !cfg.Hints {
		native := err
		if h, err = takeHook(id, prog, link.XDPGenericMode); err != nil {
			err = errors.Join(native, err)
		}
	}
	if err != nil {
		return explainAttach(err, cfg, ifi)
	}
	if a.mode, err = attachedMode(ifi.Index); err != nil {
		return errors.Join(err, h.detachProgram())
	}
	a.hook, a.index = h, ifi.Index
	return nil
}

// presentInterface finds the interface by its index, which stays when it is renamed; then by its
// name, because one that was deleted and created again has another index.
func (a *Attachment) presentInterface() (*net.Interface, error) {
	if a.index != 0 {
		if ifi, err := interfaceByIndex(a.index); err == nil || !errors.Is(err, ErrInterfaceGone) {
			return ifi, err
		}
	}
	return interfaceByName(a.cfg.Interface)
}

// attachedMode reads back the mode in which the kernel attached the program.
func attachedMode(ifindex int) (AttachMode, error) {
	l, err := linkByIndex(ifindex)
	if err != nil {
		return 0, fmt.Errorf("afxdp: read back XDP mode: %w", err)
	}
	if x := l.Attrs().Xdp; x != nil && x.AttachMode == xdpAttachedSKB {
		return AttachGeneric, nil
	}
	return AttachNative, nil
}

// xdpAttachedSKB is XDP_ATTACHED_SKB of linux/if_link.h.
const xdpAttachedSKB = 2

// explainAttach adds the meaning and a remedy to an errno of the attachment.
func explainAttach(err error, cfg AttachConfig, ifi *net.Interface) error {
	d, _ := queryDevice(ifi)
	switch {
	case errors.Is(err, unix.EBUSY), errors.Is(err, unix.EEXIST):
		return fmt.Errorf("%w: on %s: program id %d; detach it with its owner's tool (bpftool net shows it), or pass packets on from it: %w",
			ErrProgramAttached, ifi.Name, attachedProgram(ifi.Index), err)
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("%w: attaching XDP programs needs CAP_NET_ADMIN and CAP_BPF: %w", ErrPermission, err)
	case errors.Is(err, unix.ENODEV):
		return fmt.Errorf("%w: %s: %w", ErrInterfaceGone, ifi.Name, err)
	case errors.Is(err, unix.ENOSPC):
		return fmt.Errorf("%w: attach to %s: a veth needs at least as many receive queues as its peer has transmit queues, others a free transmit queue for each CPU; set them with ethtool -L, or use AttachGeneric without Hints: %w", ErrFewQueues, ifi.Name, err)
	case errors.Is(err, unix.EOPNOTSUPP) && !d.Native && (cfg.Mode == AttachNative || cfg.Hints):
		return &FeatureError{
			Feature: "native XDP on " + ifi.Name, Needs: "a driver that has it, which " + d.name() + " lacks",
			Remedy: "use AttachAuto or AttachGeneric, without Hints", Err: err,
		}
	case ifi.MTU > 3498 && !cfg.MultiBuffer:
		return fmt.Errorf("%w: attach to %s: MTU %d may need a program for several buffers (AttachConfig.MultiBuffer, BPF_F_XDP_HAS_FRAGS): %w",
			ErrFrameTooSmall, ifi.Name, ifi.MTU, err)
	}
	return fmt.Errorf("afxdp: attach to %s in %s mode: %w", ifi.Name, cfg.Mode, err)
}

// attachedProgram returns the id of the program on an interface, 0 for none.
func attachedProgram(ifindex int) uint32 {
	l, err := netlink.LinkByIndex(ifindex)
	if err != nil || l.Attrs().Xdp == nil {
		return 0
	}
	return l.Attrs().Xdp.ProgId
}

// Mode returns the mode that the kernel uses, read back from it.
func (a *Attachment) Mode() AttachMode { return a.mode }

// XSKMap returns the built-in program's map for Config.XSKMap; nil with the
// caller's program. It belongs to the Attachment.
func (a *Attachment) XSKMap() *ebpf.Map { return a.OtherXSKMap(-1) }

// OtherXSKMap returns the map for the packets of AttachConfig.Others[i], or that of Match for -1.
func (a *Attachment) OtherXSKMap(i int) *ebpf.Map {
	if a.xsks == nil {
		return nil
	}
	return a.xsks[1+i]
}

// Close detaches the program from the interface. It may be called more than once.
func (a *Attachment) Close() error {
	attached.Delete(a)
	return errors.Join(a.detachLink(), a.closePrograms())
}

func (a *Attachment) closePrograms() error {
	errs := []error{a.prog.Close()} // which accepts nil
	for _, m := range a.xsks {
		errs = append(errs, m.Close())
	}
	return errors.Join(errs...)
}
