//go:build linux

package afxdp

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/internal/refuse"
	"github.com/libra-ina/libra/internal/sys"
	"github.com/libra-ina/libra/internal/testbed"
)

// refused runs fn in a namespace with calls that fail, and checks for an error and
// for words of its text.
func refused(t *testing.T, ns *testbed.Namespace, what string, want error, words string, fn func() error, calls ...refuse.Call) {
	t.Helper()
	err := ns.Do(func() error { return refuse.Run(fn, calls...) })
	if !errors.Is(err, want) || err != nil && !strings.Contains(err.Error(), words) {
		t.Errorf("%s: error %q, want %v and %q", what, err, want, words)
	}
}

func setsockopt(level, opt uint32, err unix.Errno) refuse.Call {
	return refuse.Call{Number: unix.SYS_SETSOCKOPT, Args: map[int]uint32{1: level, 2: opt}, Err: err}
}

// getsockoptXDP is a question of a socket that fails with EDOM.
func getsockoptXDP(opt uint32) refuse.Call {
	return refuse.Call{Number: unix.SYS_GETSOCKOPT, Args: map[int]uint32{1: unix.SOL_XDP, 2: opt}, Err: unix.EDOM}
}

func bpfCommand(command uint32, err unix.Errno) refuse.Call {
	return refuse.Call{Number: unix.SYS_BPF, Args: map[int]uint32{0: command}, Err: err}
}

func socketOf(family uint32, err unix.Errno) refuse.Call {
	return refuse.Call{Number: unix.SYS_SOCKET, Args: map[int]uint32{0: family}, Err: err}
}

// Each step of Open may fail. Then it names the step, and keeps neither a frame nor a
// descriptor.
func TestOpenMeetsErrors(t *testing.T) {
	ns := newNet(t, testbed.VethConfig{})
	at := attach(t, ns, AttachConfig{Interface: "b", Queues: 4})
	u := newUMEM(t, UMEMConfig{Frames: 64})
	pool := newPool(t, u, 0)
	cfg := Config{Interface: "b", XSKMap: at.XSKMap(), BusyPoll: &BusyPoll{}, RxRing: 64, TxRing: 64, FillRing: 32, CompletionRing: 16}
	open := func() error {
		s, err := Open(pool, cfg)
		if err == nil {
			err = s.Close()
		}
		return err
	}
	before := refuse.CountDescriptors(t)
	for name, c := range map[string]struct {
		call  refuse.Call
		want  error
		words string
	}{
		"no privilege":      {socketOf(unix.AF_XDP, unix.EPERM), ErrPermission, "need CAP_NET_RAW"},
		"the same, wrapped": {socketOf(unix.AF_XDP, unix.EPERM), unix.EPERM, "afxdp: missing privilege: AF_XDP sockets need"},
		"no such family":    {socketOf(unix.AF_XDP, unix.EAFNOSUPPORT), errors.ErrUnsupported, "CONFIG_XDP_SOCKETS"},
		"socket":            {socketOf(unix.AF_XDP, unix.EDOM), unix.EDOM, "socket AF_XDP: "},
		"eventfd":           {refuse.Call{Number: unix.SYS_EVENTFD2, Err: unix.EDOM}, unix.EDOM, "eventfd"},
		"fill ring":         {setsockopt(unix.SOL_XDP, unix.XDP_UMEM_FILL_RING, unix.EDOM), unix.EDOM, "afxdp: XDP_UMEM_FILL_RING of 32 entries: "},
		"completion ring":   {setsockopt(unix.SOL_XDP, unix.XDP_UMEM_COMPLETION_RING, unix.EBUSY), unix.EBUSY, "afxdp: XDP_UMEM_COMPLETION_RING of 16 entries: "},
		"RX ring":           {setsockopt(unix.SOL_XDP, unix.XDP_RX_RING, unix.EDOM), unix.EDOM, "afxdp: XDP_RX_RING of 64 entries: "},
		"TX ring":           {setsockopt(unix.SOL_XDP, unix.XDP_TX_RING, unix.EDOM), unix.EDOM, "afxdp: XDP_TX_RING of 64 entries: "},
		"budget":            {setsockopt(unix.SOL_XDP, unix.XDP_MAX_TX_SKB_BUDGET, unix.EDOM), unix.EDOM, "setsockopt XDP_MAX_TX_SKB_BUDGET: "},
		"busy polling":      {setsockopt(unix.SOL_SOCKET, unix.SO_PREFER_BUSY_POLL, unix.ENOPROTOOPT), errors.ErrUnsupported, "preferred busy polling (SO_PREFER_BUSY_POLL)"},
		"its time":          {setsockopt(unix.SOL_SOCKET, unix.SO_BUSY_POLL, unix.EPERM), ErrPermission, "missing privilege: SO_BUSY_POLL needs CAP_NET_ADMIN"},
		"its budget":        {setsockopt(unix.SOL_SOCKET, unix.SO_BUSY_POLL_BUDGET, unix.EDOM), unix.EDOM, "afxdp: set SO_BUSY_POLL_BUDGET to 64: "},
		"offsets":           {getsockoptXDP(unix.XDP_MMAP_OFFSETS), unix.EDOM, "afxdp: XDP_MMAP_OFFSETS: "},
		"mapping":           {refuse.Call{Number: unix.SYS_MMAP, Args: map[int]uint32{3: unix.MAP_SHARED | unix.MAP_POPULATE}, Err: unix.EDOM}, unix.EDOM, "afxdp: map ring at offset 0x100000000: mmap: "},
		"UMEM":              {setsockopt(unix.SOL_XDP, unix.XDP_UMEM_REG, unix.EDOM), unix.EDOM, "afxdp: register UMEM of 64 frames of 2048 bytes: "},
		"UMEM's limit":      {setsockopt(unix.SOL_XDP, unix.XDP_UMEM_REG, unix.ENOBUFS), ErrMemlock, "131072 bytes; raise RLIMIT_MEMLOCK"},
		"UMEM's privilege":  {setsockopt(unix.SOL_XDP, unix.XDP_UMEM_REG, unix.EPERM), ErrMemlock, "131072 bytes"},
		"bind":              {refuse.Call{Number: unix.SYS_BIND, Args: map[int]uint32{2: unix.SizeofSockaddrXDP}, Err: unix.EDOM}, unix.EDOM, "afxdp: bind to queue 0 of b: "},
		"mode":              {getsockoptXDP(unix.XDP_OPTIONS), unix.EDOM, "getsockopt XDP_OPTIONS: "},
		"map":               {bpfCommand(unix.BPF_MAP_UPDATE_ELEM, unix.EDOM), unix.EDOM, "afxdp: enter queue 0 in the XSKMAP of 4 entries: "},
	} {
		refused(t, ns, name, c.want, c.words, open, c.call)
		if diff := (Census{Free: 64}); u.Census() != diff {
			t.Errorf("%s: frames are %+v", name, u.Census())
		}
		if now := refuse.CountDescriptors(t); now != before {
			t.Errorf("%s: %d descriptors are open, %d before", name, now, before)
		}
	}
	fd := 0
	refused(t, ns, "no socket", unix.EDOM, "", func() (err error) { fd, err = newSocket(); return err }, socketOf(unix.AF_XDP, unix.EDOM))
	if fd != -1 {
		t.Errorf("no socket is descriptor %d", fd)
	}
	err := ns.Do(func() error {
		refuse.Exhaust(t, "", func() (func() error, error) {
			s, err := Open(pool, cfg)
			return s.Close, err
		})
		refuse.Exhaust(t, "afxdp: ", func() (func() error, error) {
			a, err := Attach(AttachConfig{Interface: "a"})
			return a.Close, err
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := u.Close(); err != nil {
		t.Fatal(err)
	}
	_, err = tryOpen(ns, pool, cfg)
	if !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), "UMEM is closed") {
		t.Errorf("on a closed UMEM: %v", err)
	}
}

// Without CAP_NET_ADMIN, and on kernels before 6.18, a socket gets what there is.
func TestOpenMakesDo(t *testing.T) {
	ns := newNet(t, testbed.VethConfig{})
	pool := newPool(t, newUMEM(t, UMEMConfig{}), 0)
	cfg := Config{Interface: "a", TxRing: 64}
	const size = 64 * (2048 + 1024) // what net.core.wmem_max allows everywhere
	for name, c := range map[string]struct {
		calls  []refuse.Call
		budget int
		err    string
	}{
		"all":            {nil, 64, ""},
		"old kernel":     {[]refuse.Call{setsockopt(unix.SOL_XDP, unix.XDP_MAX_TX_SKB_BUDGET, unix.ENOPROTOOPT)}, 32, ""},
		"no privilege":   {[]refuse.Call{setsockopt(unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, unix.EPERM)}, 64, ""},
		"no send buffer": {[]refuse.Call{setsockopt(unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, unix.EPERM), setsockopt(unix.SOL_SOCKET, unix.SO_SNDBUF, unix.EDOM)}, 0, "setsockopt SO_SNDBUF: "},
	} {
		var want error
		if c.err != "" {
			want = unix.EDOM
		}
		refused(t, ns, name, want, c.err, func() error {
			s, err := Open(pool, cfg)
			if err != nil {
				return err
			}
			if got, err := unix.GetsockoptInt(s.FD(), unix.SOL_SOCKET, unix.SO_SNDBUF); got != size || err != nil {
				t.Errorf("%s: a send buffer of %d bytes, %v; want %d", name, got, err, size)
			}
			if got := s.Info().TxBudget; got != c.budget {
				t.Errorf("%s: budget %d, want %d", name, got, c.budget)
			}
			return s.Close()
		}, c.calls...)
	}
	for _, budget := range []int{31, 32, 33} {
		s := open(t, ns, pool, Config{Interface: "a", TxBudget: budget})
		if got := s.Info().TxBudget; got != max(budget, 32) {
			t.Errorf("a budget of %d became %d", budget, got)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// What siblings of one UMEM answer decides where a socket is bound.
func TestSiblingsThatCannotBeShared(t *testing.T) {
	for name, c := range map[string]struct {
		call   refuse.Call
		mode   BindMode
		want   error
		shared bool
	}{
		"sibling's mode is unknown":          {getsockoptXDP(unix.XDP_OPTIONS), BindAuto, unix.EDOM, false},
		"sibling lost its interface":         {refuse.Call{Number: unix.SYS_BIND, Args: map[int]uint32{2: unix.SizeofSockaddrXDP}, Err: unix.EBADF}, BindAuto, unix.EBADF, false},
		"sibling has zero-copy":              {refuse.Call{Number: unix.SYS_BIND, Args: map[int]uint32{2: unix.SizeofSockaddrXDP}, Err: unix.EOPNOTSUPP}, BindAuto, errors.ErrUnsupported, false},
		"sibling has zero-copy, and must do": {refuse.Call{Number: unix.SYS_BIND, Args: map[int]uint32{2: unix.SizeofSockaddrXDP}, Err: unix.EOPNOTSUPP}, BindCopy, errors.ErrUnsupported, false},
	} {
		ns := newNet(t, testbed.VethConfig{Queues: 2})
		u := newUMEM(t, UMEMConfig{Frames: 128})
		open(t, ns, newPool(t, u, 64), Config{Interface: "a", Mode: c.mode})
		pool := newPool(t, u, 64)
		var registered bool
		refused(t, ns, name, c.want, "", func() error {
			s := &Socket{gate: newGate(), umem: u, pool: pool, state: u.state, fd: -1, cfg: Config{Interface: "a", Queue: 1, Mode: c.mode}}
			var err error
			if s.fd, err = newSocket(); err != nil {
				return err
			}
			defer unix.Close(s.fd)
			ifi, err := net.InterfaceByName("a")
			if err != nil {
				return err
			}
			id, err := sys.ThreadNamespaceID()
			if err != nil {
				return err
			}
			s.queue = queueID{id, ifi.Index, 1}
			err = s.bind(ifi.Index)
			registered = s.registered
			return err
		}, c.call)
		// It goes on to a registration of its own only where the sibling's does not
		// matter.
		if want := c.mode == BindAuto && !errors.Is(c.want, unix.EDOM); registered != want {
			t.Errorf("%s: registered itself: %v, want %v", name, registered, want)
		}
	}
}

func TestAttachMeetsErrors(t *testing.T) {
	ns := newNet(t, testbed.VethConfig{})
	try := func(cfg AttachConfig) func() error {
		return func() error {
			a, err := Attach(cfg)
			if err == nil {
				err = a.Close()
			}
			return err
		}
	}
	plain := AttachConfig{Interface: "b"}
	load := func(err unix.Errno) refuse.Call { return bpfCommand(unix.BPF_PROG_LOAD, err) }
	attach := func(err unix.Errno) refuse.Call { return bpfCommand(unix.BPF_LINK_CREATE, err) }
	for name, c := range map[string]struct {
		cfg   AttachConfig
		call  refuse.Call
		want  error
		words string
	}{
		"map":             {plain, bpfCommand(unix.BPF_MAP_CREATE, unix.EDOM), unix.EDOM, "afxdp: create XSKMAP: "},
		"map, privilege":  {plain, bpfCommand(unix.BPF_MAP_CREATE, unix.EPERM), ErrPermission, "create XSKMAP needs CAP_BPF and CAP_NET_ADMIN: "},
		"load":            {plain, load(unix.EDOM), unix.EDOM, "afxdp: load XDP program: "},
		"load, privilege": {plain, load(unix.EPERM), ErrPermission, "load XDP program needs CAP_BPF"},
		"fragments":       {AttachConfig{Interface: "b", MultiBuffer: true}, load(unix.EINVAL), errors.ErrUnsupported, "XDP programs for several buffers needs Linux 6.1"},
		"hints":           {AttachConfig{Interface: "b", Hints: true, Mode: AttachNative}, load(unix.EOPNOTSUPP), errors.ErrUnsupported, "receive hints needs Linux 6.3 or later and a driver with XDP metadata: "},
		"privilege":       {plain, attach(unix.EPERM), ErrPermission, "missing privilege: attaching XDP programs needs CAP_NET_ADMIN and CAP_BPF: "},
		"gone":            {plain, attach(unix.ENODEV), ErrInterfaceGone, ": b: "},
		"queues":          {plain, attach(unix.ENOSPC), unix.ENOSPC, "afxdp: attach to b: too few receive queues"},
		"busy":            {plain, attach(unix.EBUSY), ErrProgramAttached, "on b: program id 0;"},
		"attach":          {plain, attach(unix.EDOM), unix.EDOM, "afxdp: attach to b in auto mode: "},
		"attach natively": {AttachConfig{Interface: "b", Mode: AttachNative}, attach(unix.EDOM), unix.EDOM, "afxdp: attach to b in native mode: "},
	} {
		refused(t, ns, name, c.want, c.words, try(c.cfg), c.call)
		if id := attachedID(t, ns); id != 0 {
			t.Errorf("%s: program %d is on the interface", name, id)
		}
	}
	if _, err := attachedMode(1 << 30); err == nil || !strings.HasPrefix(err.Error(), "afxdp: read back XDP mode: ") {
		t.Errorf("mode of no interface: %v", err)
	}
	if id := attachedProgram(1 << 30); id != 0 {
		t.Errorf("program %d on no interface", id)
	}
}

// The text of an errno tells what to do about it.
func TestExplanations(t *testing.T) {
	jumbo := &net.Interface{Name: "b", MTU: 3499}
	for name, c := range map[string]struct {
		got   error
		want  error
		words string
	}{
		"jumbo":              {explainAttach(unix.EDOM, AttachConfig{}, jumbo), ErrFrameTooSmall, "attach to b: MTU 3499 may need"},
		"jumbo, fragments":   {explainAttach(unix.EDOM, AttachConfig{MultiBuffer: true}, jumbo), unix.EDOM, "attach to b in auto mode: "},
		"not quite jumbo":    {explainAttach(unix.EDOM, AttachConfig{Mode: AttachGeneric}, &net.Interface{Name: "b", MTU: 3498}), unix.EDOM, "afxdp: attach to b in generic mode: "},
		"exists":             {explainAttach(unix.EEXIST, AttachConfig{}, jumbo), ErrProgramAttached, "on b: "},
		"load":               {explainLoad("do this", unix.EDOM), unix.EDOM, "afxdp: do this: "},
		"load, no privilege": {explainLoad("do this", unix.EPERM), ErrPermission, "privilege: do this needs"},
	} {
		if !errors.Is(c.got, c.want) || !strings.Contains(c.got.Error(), c.words) {
			t.Errorf("%s: %q, want %v and %q", name, c.got, c.want, c.words)
		}
	}
	s := &Socket{cfg: Config{Interface: "b", Queue: 3, BindTimeout: time.Second}}
	multi := &Socket{cfg: Config{Interface: "b", Queue: 3, MultiBuffer: true}}
	for name, c := range map[string]struct {
		s     *Socket
		errno unix.Errno
		want  error
		words string
	}{
		"busy":                {s, unix.EBUSY, ErrQueueBusy, "queue 3 of b was still taken after 1s"},
		"not supported":       {s, unix.EOPNOTSUPP, errors.ErrUnsupported, "zero-copy on b needs"},
		"gone":                {s, unix.ENODEV, ErrInterfaceGone, ": b: "},
		"down":                {s, unix.ENETDOWN, ErrLinkDown, ": b: "},
		"fragments":           {multi, unix.EINVAL, errors.ErrUnsupported, "multi-buffer on queue 3 of b needs Linux 6.6"},
		"invalid":             {s, unix.EINVAL, ErrNoQueue, "queue 3 of b; or"},
		"something":           {s, unix.EDOM, unix.EDOM, "afxdp: bind to queue 3 of b: "},
		"something, fragment": {multi, unix.EDOM, unix.EDOM, "afxdp: bind to queue 3 of b: "},
	} {
		err := c.s.explainBind(c.errno)
		if !errors.Is(err, c.want) || !errors.Is(err, c.errno) || !strings.Contains(err.Error(), c.words) {
			t.Errorf("bind, %s: %q, want %v and %q", name, err, c.want, c.words)
		}
	}
	if err := s.explainBind(nil); err != nil {
		t.Error(err)
	}
}

func TestDetachMeetsErrors(t *testing.T) {
	ns := newNet(t, testbed.VethConfig{})
	var id hookID
	err := ns.Do(func() error {
		ifi, err := net.InterfaceByName("b")
		if err == nil {
			id.ifindex = ifi.Index
			id.ns, err = sys.ThreadNamespaceID()
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	use := func() (h *hook) {
		t.Helper()
		if err := ns.Do(func() (err error) { h, err = useHook(id); return err }); err != nil {
			t.Fatal(err)
		}
		return h
	}
	use1 := func() error { _, err := useHook(id); return err }
	refused(t, ns, "load", unix.EDOM, "afxdp: load XDP program: ", use1, bpfCommand(unix.BPF_PROG_LOAD, unix.EDOM))
	refused(t, ns, "attach", unix.EDOM, "afxdp: attach the program that zero-copy mode needs: ", use1, bpfCommand(unix.BPF_LINK_CREATE, unix.EDOM))
	// What a process may not do, another may have done.
	for _, c := range []refuse.Call{
		bpfCommand(unix.BPF_PROG_LOAD, unix.EPERM), bpfCommand(unix.BPF_LINK_CREATE, unix.EPERM),
		bpfCommand(unix.BPF_LINK_CREATE, unix.EBUSY), bpfCommand(unix.BPF_LINK_CREATE, unix.EEXIST),
	} {
		refused(t, ns, "another process", nil, "", func() error {
			h, err := useHook(id)
			if h != nil {
				t.Errorf("call %v: hook %+v", c, h)
			}
			return err
		}, c)
	}
	foreign := passProgram(t)
	before := refuse.CountDescriptors(t)
	err = ns.Do(func() error {
		refuse.Exhaust(t, "afxdp: ", func() (func() error, error) {
			h, err := useHook(id)
			return h.leave, err
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}

	// A program is there that this process did not put there by a hook.
	var l link.Link
	err = ns.Do(func() (err error) {
		l, err = link.AttachXDP(link.XDPOptions{Program: foreign, Interface: id.ifindex})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if h := use(); h != nil {
		t.Errorf("hook %+v beside another program", h)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}

	// The passing program cannot take the place of the Attachment's.
	for name, c := range map[string]struct {
		call  refuse.Call
		want  error
		words string
	}{
		"load":              {bpfCommand(unix.BPF_PROG_LOAD, unix.EDOM), unix.EDOM, "afxdp: detach from b: afxdp: load XDP program: "},
		"update":            {bpfCommand(unix.BPF_LINK_UPDATE, unix.EDOM), unix.EDOM, "afxdp: detach from b: afxdp: put a program that passes packets on in the place of the detached one: "},
		"interface is gone": {bpfCommand(unix.BPF_LINK_UPDATE, unix.ENOLINK), nil, ""},
	} {
		a := attach(t, ns, AttachConfig{Interface: "b"})
		h := use()
		refused(t, ns, name, c.want, c.words, a.Close, c.call)
		if p := attachedID(t, ns); p != 0 {
			t.Errorf("%s: program %d is on the interface", name, p)
		}
		if err := a.Close(); err != nil {
			t.Errorf("%s: closed again: %v", name, err)
		}
		if err := h.leave(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	// Nor the Attachment's that of the passing one, which stays.
	h := use()
	passing := attachedID(t, ns)
	refused(t, ns, "update", unix.EDOM, "afxdp: attach to b in native mode: ", func() error {
		_, err := Attach(AttachConfig{Interface: "b", Mode: AttachNative})
		return err
	}, bpfCommand(unix.BPF_LINK_UPDATE, unix.EDOM))
	if p := attachedID(t, ns); p != passing {
		t.Errorf("program %d is on the interface, want %d", p, passing)
	}
	if err := h.leave(); err != nil {
		t.Fatal(err)
	}
	// Reattach reports what it cannot take off.
	a := attach(t, ns, AttachConfig{Interface: "b"})
	h = use()
	refused(t, ns, "reattach", unix.EDOM, "afxdp: detach from b: ", a.Reattach, bpfCommand(unix.BPF_LINK_UPDATE, unix.EDOM))
	if err := errors.Join(h.leave(), a.Close()); err != nil {
		t.Error(err)
	}
	if err := a.Reattach(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("reattach after Close: %v", err)
	}
	if now := refuse.CountDescriptors(t); now != before {
		t.Errorf("%d descriptors are open, %d before", now, before)
	}
	if len(hooks.of) != 0 {
		t.Errorf("hooks %v", slices.Collect(maps.Keys(hooks.of)))
	}
}

func TestPassedSocketMeetsErrors(t *testing.T) {
	ns := newNet(t, testbed.VethConfig{})
	create := func() error {
		f, err := NewSocketFD("a")
		if err == nil {
			err = f.Close()
		}
		return err
	}
	refused(t, ns, "socket", unix.EDOM, "socket AF_XDP: ", create, socketOf(unix.AF_XDP, unix.EDOM))
	before := refuse.CountDescriptors(t)
	refused(t, ns, "restrict", unix.EDOM, "afxdp: restrict socket to a: ", create, setsockopt(unix.SOL_SOCKET, unix.SO_BINDTODEVICE, unix.EDOM))
	if now := refuse.CountDescriptors(t); now != before {
		t.Errorf("%d descriptors are open, %d before", now, before)
	}

	pool := newPool(t, newUMEM(t, UMEMConfig{}), 0)
	for name, c := range map[string]struct {
		calls []refuse.Call
		want  error
		words string
	}{
		"duplicate":   {[]refuse.Call{{Number: unix.SYS_FCNTL, Args: map[int]uint32{1: unix.F_DUPFD_CLOEXEC}, Err: unix.EDOM}}, unix.EDOM, "afxdp: passed socket: fcntl: "},
		"inode":       {[]refuse.Call{{Number: unix.SYS_FSTAT, Err: unix.EDOM}}, unix.EDOM, "fstat: "},
		"used before": {[]refuse.Call{setsockopt(unix.SOL_XDP, unix.XDP_RX_RING, unix.EBUSY)}, unix.EBUSY, "afxdp: passed socket was used before, pass a fresh one: XDP_RX_RING: "},
		"bound":       {[]refuse.Call{setsockopt(unix.SOL_XDP, unix.XDP_TX_RING, unix.EINVAL)}, unix.EINVAL, "afxdp: passed socket was used before, pass a fresh one: XDP_TX_RING: "},
		"ring":        {[]refuse.Call{setsockopt(unix.SOL_XDP, unix.XDP_TX_RING, unix.EDOM)}, unix.EDOM, "afxdp: XDP_TX_RING of 2048 entries: "},
	} {
		refused(t, ns, name, c.want, c.words, func() error {
			f, err := NewSocketFD("a")
			if err != nil {
				return err
			}
			defer f.Close()
			_, err = Open(pool, Config{Interface: "a", File: f})
			return err
		}, c.calls...)
	}
	var f *os.File
	if err := ns.Do(func() (err error) { f, err = NewSocketFD("a"); return err }); err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	s := open(t, ns, pool, Config{Interface: "a", File: f})
	if err := s.Reopen(t.Context()); !errors.Is(err, ErrPassedFD) || !strings.Contains(err.Error(), "passes anew") {
		t.Errorf("Reopen: %v, want ErrPassedFD", err)
	}
}

// A queue that cannot be asked for is still lent.
func TestReclaimMeetsErrors(t *testing.T) {
	ns := newNet(t, testbed.VethConfig{})
	pool := newPool(t, newUMEM(t, UMEMConfig{Frames: 64}), 0)
	s := open(t, ns, pool, Config{Interface: "a", RxFrames: 16})
	lingering(t, s)()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	index := s.left.ifindex
	reclaim := func() error { _, err := s.Reclaim(); return err }
	for name, c := range map[string]struct {
		call  refuse.Call
		words string
	}{
		"socket":       {socketOf(unix.AF_XDP, unix.EDOM), "socket AF_XDP: "},
		"registration": {setsockopt(unix.SOL_XDP, unix.XDP_UMEM_REG, unix.EDOM), "setsockopt XDP_UMEM_REG: "},
		"ring":         {setsockopt(unix.SOL_XDP, unix.XDP_UMEM_COMPLETION_RING, unix.EDOM), "setsockopt of a ring: "},
		"bind":         {refuse.Call{Number: unix.SYS_BIND, Args: map[int]uint32{2: unix.SizeofSockaddrXDP}, Err: unix.EDOM}, "bind: "},
	} {
		before := refuse.CountDescriptors(t)
		refused(t, ns, name, unix.EDOM, fmt.Sprintf("queue 0 of interface %d: %s", index, c.words), reclaim, c.call)
		refused(t, ns, name, ErrStillLent, "", reclaim, c.call)
		if now := refuse.CountDescriptors(t); now != before {
			t.Errorf("%s: %d descriptors are open, %d before", name, now, before)
		}
		if pool.Available() != 48 {
			t.Errorf("%s: %d frames are free", name, pool.Available())
		}
	}
	for _, c := range []struct {
		errno unix.Errno
		free  bool
	}{{unix.ENODEV, true}, {unix.EINVAL, true}, {unix.EBUSY, false}, {unix.ENETDOWN, false}} {
		refused(t, ns, c.errno.Error(), nil, "", func() error {
			free, err := isFree(index, 0)
			if free != c.free {
				t.Errorf("%v: free %v, want %v", c.errno, free, c.free)
			}
			return err
		}, refuse.Call{Number: unix.SYS_BIND, Args: map[int]uint32{2: unix.SizeofSockaddrXDP}, Err: c.errno})
	}
	if err := reclaim(); err != nil || pool.Available() != 64 {
		t.Errorf("%v, %d frames are free", err, pool.Available())
	}
}

func TestCallsMeetErrors(t *testing.T) {
	ns := newNet(t, testbed.VethConfig{})
	s := open(t, ns, newPool(t, newUMEM(t, UMEMConfig{}), 0), Config{Interface: "a"})
	refused(t, ns, "statistics", unix.EDOM, "getsockopt XDP_STATISTICS: ", func() error { _, err := s.Stats(); return err }, getsockoptXDP(unix.XDP_STATISTICS))
	poll := func() error { _, err := s.Poll(EventRx, time.Minute); return err }
	refused(t, ns, "poll", unix.EDOM, "ppoll: ", poll, refuse.Call{Number: unix.SYS_PPOLL, Err: unix.EDOM})
	// A call that a signal interrupts goes on.
	refused(t, ns, "interrupted poll", nil, "", func() error {
		ev, err := s.Poll(EventRx, time.Millisecond)
		if ev != 0 {
			t.Errorf("events %b", ev)
		}
		return err
	}, refuse.Call{Number: unix.SYS_PPOLL, Err: unix.EINTR})
	for name, c := range map[string]struct {
		ifname string
		call   refuse.Call
		want   error
	}{
		"queues":            {"a", refuse.Call{Number: unix.SYS_IOCTL, Err: unix.EDOM}, unix.EDOM},
		"queues, no socket": {"a", socketOf(unix.AF_INET, unix.EDOM), unix.EDOM},
		"queues, long name": {"a-name-of-16-chr", refuse.Call{Number: unix.SYS_IOCTL, Err: unix.EDOM}, unix.EINVAL},
		"queues, long":      {"a-name-of-15-ch", refuse.Call{Number: unix.SYS_IOCTL, Err: unix.EDOM}, unix.EDOM},
	} {
		refused(t, ns, name, c.want, "afxdp: queues of "+c.ifname+": ", func() error {
			rx, tx, err := QueueCounts(c.ifname)
			if rx != 0 || tx != 0 {
				t.Errorf("%d and %d queues", rx, tx)
			}
			return err
		}, c.call)
	}
	// A driver that does not tell is asked for any queue.
	refused(t, ns, "unknown queues", ErrNoQueue, "queue 7 of a; or", func() error {
		_, err := Open(s.Pool(), Config{Interface: "a", Queue: 7, RxFrames: -1})
		return err
	}, refuse.Call{Number: unix.SYS_IOCTL, Err: unix.EOPNOTSUPP})

	// The map that the program redirects by.
	at := attach(t, ns, AttachConfig{Interface: "b"})
	b := open(t, ns, newPool(t, newUMEM(t, UMEMConfig{}), 0), Config{Interface: "b", XSKMap: at.XSKMap()})
	refused(t, ns, "leave the map", unix.EDOM, "afxdp: remove queue 0 from the XSKMAP: ", func() error { return b.Reopen(context.Background()) },
		bpfCommand(unix.BPF_MAP_DELETE_ELEM, unix.EDOM))
	if err := b.Reopen(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestMemoryMeetsErrors(t *testing.T) {
	ns := newNet(t, testbed.VethConfig{})
	create := func(cfg UMEMConfig) func() error {
		return func() error {
			u, err := NewUMEM(cfg)
			if err == nil {
				err = u.Close()
			}
			return err
		}
	}
	mmap := refuse.Call{Number: unix.SYS_MMAP, Args: map[int]uint32{1: 128 << 11}, Err: unix.EDOM}
	refused(t, ns, "map", unix.EDOM, "afxdp: map 262144 bytes for the UMEM: mmap: ", create(UMEMConfig{Frames: 128, HugePages: HugePagesOff}), mmap)
	populate := refuse.Call{Number: unix.SYS_MADVISE, Args: map[int]uint32{2: unix.MADV_POPULATE_WRITE}, Err: unix.EDOM}
	refused(t, ns, "populate", unix.EDOM, "madvise MADV_POPULATE_WRITE: ", create(UMEMConfig{Frames: 128, HugePages: HugePagesOff}), populate)
	huge := refuse.Call{Number: unix.SYS_MMAP, Args: map[int]uint32{1: 4 << 20}, Err: unix.EDOM}
	refused(t, ns, "huge pages", ErrNoHugePages, "2 of 2048 kB each wanted; reserve them in /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", create(UMEMConfig{Frames: 1025, HugePages: HugePagesRequire}), huge)
	refused(t, ns, "huge pages", unix.EDOM, "", create(UMEMConfig{Frames: 2048, HugePages: HugePagesRequire}), huge)
	refused(t, ns, "node", unix.EDOM, "afxdp: NUMA node of lo: ", create(UMEMConfig{Frames: 1, NUMAOf: "lo"}), refuse.Call{Number: unix.SYS_OPENAT, Err: unix.EDOM})
	// Advice that the kernel does not take is none.
	refused(t, ns, "advice", nil, "", create(UMEMConfig{Frames: 128}), refuse.Call{Number: unix.SYS_MADVISE, Args: map[int]uint32{2: unix.MADV_HUGEPAGE}, Err: unix.EINVAL})
	mem := make([]byte, 4096)
	for want, errno := range map[error]unix.Errno{nil: unix.ENOSYS, unix.EDOM: unix.EDOM} {
		refused(t, ns, "node", want, "afxdp: place UMEM on NUMA node 0 of x: ", func() error { return placeOn(mem, 0, "x") }, refuse.Call{Number: unix.SYS_MBIND, Err: errno})
	}
	refused(t, ns, "no node", nil, "", func() error { return placeOn(mem, -1, "x") }, refuse.Call{Number: unix.SYS_MBIND, Err: unix.EDOM})
	refused(t, ns, "maps", nil, "", func() error {
		if kind := transparentHugePages(mem); kind != PagesNormal {
			t.Errorf("pages of unknown kind are %v", kind)
		}
		return nil
	}, refuse.Call{Number: unix.SYS_OPENAT, Err: unix.EDOM})
}

func TestNamespaceOfASocket(t *testing.T) {
	ns, other := newNet(t, testbed.VethConfig{}), newNet(t, testbed.VethConfig{})
	u := newUMEM(t, UMEMConfig{})
	var n *namespace
	if err := ns.Do(func() error { n = u.enterNamespace(); return nil }); err != nil {
		t.Fatal(err)
	}
	before := refuse.CountDescriptors(t)
	err := ns.Do(func() error {
		if again := u.enterNamespace(); again != n || n.refs != 2 || n.id() != ns.ID() {
			t.Errorf("%v, want %v again, with two users", again, n)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if now := refuse.CountDescriptors(t); now != before {
		t.Errorf("%d descriptors are open, %d before", now, before)
	}
	// Without /proc there is none, and things happen where the caller is.
	refused(t, ns, "no /proc", nil, "", func() error {
		none := u.enterNamespace()
		if none != nil || none.id() != (sys.NamespaceID{}) {
			t.Errorf("namespace %v", none)
		}
		ran := false
		err := none.do(func() error { ran = true; return nil })
		if !ran {
			t.Error("the function does not run")
		}
		return errors.Join(err, u.leaveNamespace(none))
	}, refuse.Call{Number: unix.SYS_OPENAT, Err: unix.EDOM})
	ran := func() error { t.Error("the function runs"); return errors.New("ran") }
	refused(t, other, "no privilege", ErrPermission, "afxdp: the interface's namespace: afxdp: missing privilege: CAP_SYS_ADMIN", func() error { return n.do(ran) },
		refuse.Call{Number: unix.SYS_SETNS, Err: unix.EPERM})
	refused(t, other, "no namespace", unix.EDOM, "afxdp: the interface's namespace: ", func() error { return n.do(ran) },
		refuse.Call{Number: unix.SYS_OPENAT, Err: unix.EDOM})
	refused(t, other, "no namespace", nil, "", func() error {
		err := n.do(ran)
		if err == nil || errors.Is(err, ErrPermission) {
			t.Errorf("error %v, want one that is not ErrPermission", err)
		}
		return nil
	}, refuse.Call{Number: unix.SYS_SETNS, Err: unix.EDOM})
	// What fn returns is not taken for an error of entering.
	for _, ns := range []*testbed.Namespace{ns, other} {
		if err := ns.Do(func() error { return n.do(func() error { return unix.EPERM }) }); !errors.Is(err, unix.EPERM) || errors.Is(err, ErrPermission) {
			t.Errorf("error %v, want EPERM alone", err)
		}
	}
	for _, left := range []int{1, 0} {
		u.mu.Lock()
		err := u.leaveNamespace(n)
		u.mu.Unlock()
		if err != nil || n.refs != left || (u.spaces[n.ID()] == n) != (left == 1) {
			t.Errorf("%d users, %v, want %d", n.refs, err, left)
		}
	}
	if err := u.leaveNamespace(n); err != nil || n.refs != 0 {
		t.Errorf("left once more: %v, %d users", err, n.refs)
	}
	if err := n.Close(); err == nil {
		t.Error("the last user left the namespace open")
	}
}
