// SPDX-License-Identifier: Apache-2.0

package agentproto

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Header is the beginning of the shared memory. Each word has only one writer, except those about
// sleep.
type Header struct {
	magic        uint64
	_            [56]byte
	SQTail       word // client
	SQHead       word // agent
	CQTail       word // agent
	CQHead       word // client
	AgentSleeps  word // both
	ClientSleeps word // both
	EndCode      word // agent
	endText      [512]byte
}

// word has its own cache line. Go's atomic operations are sequentially consistent: a store, and a
// load of a different word after it, need no fence between them.
type word struct {
	atomic.Uint32
	_ [60]byte
}

// Memory is the shared memory of a session.
type Memory struct {
	*Header
	layout Layout
	mem    []byte
}

// NewMemory creates the memory of a session and returns it with its sealed memfd.
func NewMemory(l Layout) (*Memory, *os.File, error) {
	const name = "libra-agent"
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, nil, fmt.Errorf("shared memory: %w", os.NewSyscallError("memfd_create", err))
	}
	file := os.NewFile(uintptr(fd), name)
	if err := file.Truncate(int64(l.Total)); err != nil {
		return nil, nil, errors.Join(fmt.Errorf("shared memory of %d bytes: %w", l.Total, err), file.Close())
	}
	const seals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL
	if _, err := unix.FcntlInt(file.Fd(), unix.F_ADD_SEALS, seals); err != nil {
		return nil, nil, errors.Join(fmt.Errorf("shared memory: %w", os.NewSyscallError("fcntl F_ADD_SEALS", err)),
			file.Close())
	}
	m, err := mapMemory(fd, l)
	if err != nil {
		return nil, nil, errors.Join(err, file.Close())
	}
	m.magic = memoryMagic
	return m, file, nil
}

// OpenMemory maps the memory of an agent.
func OpenMemory(fd int, l Layout) (*Memory, error) {
	if l != LayoutOf(l.Entries, l.BufferBytes) {
		return nil, fmt.Errorf("agent: a layout of the shared memory that this program does not know: %+v", l)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, os.NewSyscallError("fstat", err)
	}
	if uint64(st.Size) != l.Total {
		return nil, fmt.Errorf("agent: shared memory of %d bytes, %d were announced", st.Size, l.Total)
	}
	m, err := mapMemory(fd, l)
	if err == nil && m.magic != memoryMagic {
		err = errors.Join(errors.New("agent: the shared memory does not begin as it should"), m.Close())
	}
	return m, err
}

func mapMemory(fd int, l Layout) (*Memory, error) {
	mem, err := unix.Mmap(fd, 0, int(l.Total), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("shared memory of %d bytes: %w", l.Total, os.NewSyscallError("mmap", err))
	}
	return &Memory{Header: (*Header)(unsafe.Pointer(&mem[0])), layout: l, mem: mem}, nil
}

// Close unmaps the memory. Its slices must no longer be used.
func (m *Memory) Close() error { return os.NewSyscallError("munmap", unix.Munmap(m.mem)) }

// Entry is a place of the submission ring.
func (m *Memory) Entry(index uint32) *[EntryLen]byte { return m.place(m.layout.SQ, index) }

// Completion is a place of the completion ring.
func (m *Memory) Completion(index uint32) *[CompletionLen]byte { return m.place(m.layout.CQ, index) }

func (m *Memory) place(ring uint64, index uint32) *[64]byte {
	return (*[64]byte)(m.mem[ring+uint64(index&(m.layout.Entries-1))*64:])
}

// Keys returns n keys of the buffer area; the caller has checked offset and length.
func (m *Memory) Keys(at uint64, n int) []uint64 {
	return unsafe.Slice((*uint64)(m.buffer(at, n, 8)), n)
}

// Floats returns n floats of the buffer area.
func (m *Memory) Floats(at uint64, n int) []float32 {
	return unsafe.Slice((*float32)(m.buffer(at, n, 4)), n)
}

// Words returns n 64-bit numbers of the buffer area.
func (m *Memory) Words(at uint64, n int) []uint64 { return m.Keys(at, n) }

// buffer points at n elements of the buffer area. It panics if they are out of range.
func (m *Memory) buffer(at uint64, n, size int) unsafe.Pointer {
	area := m.mem[m.layout.Buffers:][:m.layout.BufferBytes]
	_ = area[at:][: n*size : n*size]
	return unsafe.Pointer(unsafe.SliceData(area[at:]))
}

// End writes the reason why a session has ended.
func (m *Memory) End(code Code, text string) {
	putText(m.endText[:], text)
	m.EndCode.Store(uint32(code))
}

// Ended returns why the session has ended, or nil.
func (m *Memory) Ended() error {
	code := Code(m.EndCode.Load())
	if code == OK {
		return nil
	}
	text, _, _ := bytes.Cut(m.endText[:], []byte{0})
	return &EndedError{Code: code, Text: string(text)}
}
