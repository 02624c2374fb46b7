// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp

import (
	"errors"
	"fmt"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/internal/linux/sys"
)

// A hook is an interface's XDP hook while this process has a program there: an Attachment's, or one
// that passes every packet, for sockets in zero-copy mode. Drivers send for those only while there
// is some program (igb, ice and i40e return EINVAL otherwise, mlx5 ENETDOWN).
//
// Both share one link. So an Attachment may be opened after such sockets and closed before them,
// and the hook is never empty meanwhile.
type hook struct {
	id      hookID
	link    link.Link
	pass    *ebpf.Program // passes all packets; set while no Attachment has the link
	sockets int           // number of sockets in zero-copy mode
	idle    bool          // the link is closed: the next hook replaces this one
}

type hookID struct {
	ns      sys.NamespaceID
	ifindex int
}

var hooks struct {
	sync.Mutex
	of map[hookID]*hook
}

// takeHook puts an Attachment's program on the interface.
func takeHook(id hookID, prog *ebpf.Program, flags link.XDPAttachFlags) (*hook, error) {
	hooks.Lock()
	defer hooks.Unlock()
	if h := hooks.of[id]; h.isAttached() && h.pass != nil && flags != link.XDPGenericMode {
		if err := h.link.Update(prog); err != nil {
			return nil, err
		}
		err := h.pass.Close()
		h.pass = nil
		return h, err
	}
	l, err := link.AttachXDP(link.XDPOptions{Program: prog, Interface: id.ifindex, Flags: flags})
	if err != nil {
		return nil, err
	}
	return addHook(id, l, nil), nil
}

func addHook(id hookID, l link.Link, pass *ebpf.Program) *hook {
	if hooks.of == nil {
		hooks.of = make(map[hookID]*hook)
	}
	h := hooks.of[id]
	if h != nil && h.idle {
		h.link, h.pass, h.idle = l, pass, false
		return h
	}
	h = &hook{id: id, link: l, pass: pass}
	hooks.of[id] = h
	return h
}

// detachProgram detaches the Attachment's program, and leaves one that passes packets for as long
// as sockets need it.
func (h *hook) detachProgram() error {
	hooks.Lock()
	defer hooks.Unlock()
	if h.sockets == 0 {
		return h.closeHook()
	}
	pass, err := loadPass()
	if err != nil {
		return errors.Join(err, h.emptyHook())
	}
	err = h.link.Update(pass)
	if err == nil {
		h.pass = pass
		return nil
	}
	err = fmt.Errorf("afxdp: put a program that passes packets on in the place of the detached one: %w", err)
	if errors.Is(err, unix.ENOLINK) {
		err = nil // the interface, which the sockets needed, is gone, or another process has detached the link
	}
	return errors.Join(pass.Close(), h.emptyHook(), err)
}

// replaceProgram replaces the Attachment's program. If the link is detached, there is none to
// replace: the next program is attached with a new link.
func (h *hook) replaceProgram(prog *ebpf.Program) error {
	hooks.Lock()
	defer hooks.Unlock()
	err := h.link.Update(prog)
	if errors.Is(err, unix.ENOLINK) {
		return nil
	}
	return err
}

// emptyHook empties the hook, and keeps it for sockets that may need the next one.
func (h *hook) emptyHook() error {
	h.idle = true
	return h.link.Close()
}

// attachedTo returns the index of the link's interface: 0 once that is gone, or the link was
// detached. A new interface with the same index has no link.
func (h *hook) attachedTo() (ifindex int, err error) {
	info, err := h.link.Info()
	if err != nil {
		return 0, fmt.Errorf("afxdp: ask for the interface of the program on %d: %w", h.id.ifindex, err)
	}
	return int(info.XDP().Ifindex), nil
}

// isAttached reports whether there is a hook whose link is attached. If that is unknown, it is
// assumed.
func (h *hook) isAttached() bool {
	if h == nil || h.idle {
		return false
	}
	ifindex, err := h.attachedTo()
	return ifindex != 0 || err != nil
}

// closeHook empties the hook.
func (h *hook) closeHook() error {
	if hooks.of[h.id] == h {
		delete(hooks.of, h.id)
	}
	err := h.pass.Close() // which accepts nil
	if !h.idle {
		err = errors.Join(h.link.Close(), err)
	}
	h.pass = nil
	return err
}

// useHook ensures, for a socket in zero-copy mode, that there is a program on the interface. It
// returns nil if another process's program is there, or if this process may not attach any: then a
// privileged process is expected to have done it.
func useHook(id hookID) (*hook, error) {
	hooks.Lock()
	defer hooks.Unlock()
	h := hooks.of[id]
	if !h.isAttached() {
		if attachedProgram(id.ifindex) != 0 {
			return nil, nil
		}
		pass, err := loadPass()
		if errors.Is(err, ErrPermission) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		l, err := link.AttachXDP(link.XDPOptions{Program: pass, Interface: id.ifindex, Flags: link.XDPDriverMode})
		if err != nil {
			err = errors.Join(fmt.Errorf("afxdp: attach the program that zero-copy mode needs: %w", err), pass.Close())
			if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EBUSY) || errors.Is(err, unix.EEXIST) {
				err = nil
			}
			return nil, err
		}
		h = addHook(id, l, pass)
	}
	h.sockets++
	return h, nil
}

// releaseHook reverts useHook. h may be nil.
func (h *hook) releaseHook() error {
	if h == nil {
		return nil
	}
	hooks.Lock()
	defer hooks.Unlock()
	h.sockets--
	if h.sockets > 0 || h.pass == nil && !h.idle {
		return nil
	}
	return h.closeHook()
}

// loadPass loads a program that passes every packet to the kernel's stack. It accepts packets of
// several buffers, so that it fits every MTU.
func loadPass() (*ebpf.Program, error) {
	spec := &ebpf.ProgramSpec{
		Name: "afxdp_pass", Type: ebpf.XDP, License: "Dual BSD/GPL", Flags: unix.BPF_F_XDP_HAS_FRAGS,
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, xdpPass), asm.Return()},
	}
	prog, err := ebpf.NewProgram(spec)
	if err != nil {
		return nil, explainLoad("load XDP program", err)
	}
	return prog, nil
}

// lacksProgram reports whether the socket's interface is up and has no program, for which reason a
// driver may refuse to send in zero-copy mode.
func (s *Socket) lacksProgram() bool {
	info := s.info.Load()
	if !info.ZeroCopy {
		return false
	}
	lacks := false
	_ = s.home.runInside(func() error {
		l, err := netlink.LinkByIndex(info.Ifindex)
		if err == nil {
			a := l.Attrs()
			lacks = a.RawFlags&unix.IFF_UP != 0 && (a.Xdp == nil || !a.Xdp.Attached)
		}
		return err
	})
	return lacks
}
