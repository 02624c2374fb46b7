// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// NewSocketFD creates an AF_XDP socket that can be bound only to ifname, for a process without
// privileges: pass it (SCM_RIGHTS, or exec.Cmd.ExtraFiles), let that process call [Open] with
// Config.File, and put the socket in an XSKMAP, unless the map is passed as well (Config.XSKMap).
// Linux 7 refuses to put it there before Open, with ENOBUFS, because it has no receive ring yet.
// The calling thread's network namespace must be the interface's. Creating it needs CAP_NET_RAW;
// binding it needs nothing, except that the UMEM must fit the process's RLIMIT_MEMLOCK.
func NewSocketFD(ifname string) (*os.File, error) {
	// The kernel would take an empty name for any interface, and truncate a long one.
	if _, err := interfaceByName(ifname); err != nil {
		return nil, err
	}
	fd, err := newSocket()
	if err != nil {
		return nil, err
	}
	if err := unix.BindToDevice(fd, ifname); err != nil {
		return nil, errors.Join(fmt.Errorf("afxdp: restrict socket to %s: %w", ifname, err), unix.Close(fd))
	}
	return os.NewFile(uintptr(fd), "af_xdp:"+ifname), nil
}

// prepared is the state that a failed Open left in a passed socket and cannot revert. Another Open
// on the same UMEM continues from there.
type prepared struct {
	rings      [4]int
	registered bool
}

func (s *Socket) ringSizes() [4]int {
	return [4]int{s.cfg.FillRing, s.cfg.CompletionRing, s.cfg.RxRing, s.cfg.TxRing}
}

// socketInode identifies a passed socket, whatever descriptor it has.
func socketInode(fd int) (uint64, error) {
	var st unix.Stat_t
	err := unix.Fstat(fd, &st)
	return st.Ino, os.NewSyscallError("fstat", err)
}

// findPrepared looks for the state that a failed Open left in the passed socket.
func (s *Socket) findPrepared() (bool, error) {
	if s.cfg.File == nil {
		return false, nil
	}
	inode, err := socketInode(s.fd)
	if err != nil {
		return false, err
	}
	s.umem.mu.Lock()
	defer s.umem.mu.Unlock()
	p, ok := s.umem.prepared[inode]
	if !ok {
		return false, nil
	}
	if p.rings != s.ringSizes() {
		return false, fmt.Errorf("%w: an Open that failed gave the passed socket fill, completion, RX and TX rings of %v entries, and they cannot be changed to %v",
			ErrConfig, p.rings, s.ringSizes())
	}
	delete(s.umem.prepared, inode)
	s.registered = p.registered
	return true, nil
}

// keepPrepared remembers the state of a passed socket that could not be bound.
func (s *Socket) keepPrepared() error {
	if s.cfg.File == nil || s.bound || len(s.mappings) == 0 {
		return nil
	}
	inode, err := socketInode(s.fd)
	if err != nil {
		return err
	}
	// The kernel has not read the rings of a socket that is not bound.
	for _, r := range []*ring{&s.fill.ring, &s.tx.ring} {
		r.producer.Store(r.consumer.Load())
	}
	s.umem.mu.Lock()
	defer s.umem.mu.Unlock()
	if s.umem.prepared == nil {
		s.umem.prepared = make(map[uint64]prepared)
	}
	s.umem.prepared[inode] = prepared{s.ringSizes(), s.registered}
	return nil
}
