// SPDX-License-Identifier: Apache-2.0

//go:build linux

package bpf

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

// failures counts the program's frames that the kernel did not send.
type failures struct {
	objects failuresObjects
	links   []link.Link
	err     error // why frames are not counted
}

// startCounting loads the programs and attaches them to the kernel's tracepoints, which concern all
// interfaces of the machine. The kernel detaches them when the last process that holds them ends.
// If it fails, nothing is counted.
func (f *failures) startCounting(program *ebpf.Program) {
	if f.links != nil || f.err != nil {
		return
	}
	if f.err = f.loadTracepoint(program); f.err != nil {
		f.err = errors.Join(fmt.Errorf("frames that the kernel did not send are not counted: %w", f.err),
			f.closeTracepoints())
	}
}

func (f *failures) loadTracepoint(program *ebpf.Program) error {
	info, err := program.Info()
	if err != nil {
		return fmt.Errorf("bpf: %w", err)
	}
	id, ok := info.ID()
	if !ok {
		return fmt.Errorf("bpf: id of the program: %w", ebpf.ErrNotSupported)
	}
	spec, err := loadFailures()
	if err != nil {
		return fmt.Errorf("bpf: %w", err)
	}
	if err := spec.Variables[failuresVarProgram].Set(uint32(id)); err != nil {
		return fmt.Errorf("bpf: %w", err)
	}
	if err := load(spec, &f.objects); err != nil {
		return err
	}
	for _, p := range []*ebpf.Program{f.objects.OnException, f.objects.OnBulkTx, f.objects.OnRedirectErr,
		f.objects.OnDevmapXmit} {
		l, err := link.AttachTracing(link.TracingOptions{Program: p})
		if err != nil {
			return fmt.Errorf("bpf: attach %v: %w", p, err)
		}
		f.links = append(f.links, l)
	}
	return nil
}

// countAttached starts counting for an interface, detached stops it.
func (f *failures) countAttached(n *namespace, index uint32) error {
	if f.links == nil {
		return nil
	}
	err := f.objects.Attachments.Put(attachment(n, index), uint32(1))
	if err != nil {
		return fmt.Errorf("bpf: count what interface %d does not send: %w", index, err)
	}
	return nil
}

func (f *failures) countDetached(n *namespace, index uint32) error {
	if f.links == nil {
		return nil
	}
	return absent(f.objects.Attachments.Delete(attachment(n, index)))
}

// attachment is the key of an interface. The inode number of its file identifies a network
// namespace.
func attachment(n *namespace, index uint32) failuresAttached {
	return failuresAttached{Namespace: uint32(n.ID().Inode()), Index: index}
}

// readCounts returns how many answers and how many redirected frames were not sent.
func (f *failures) readCounts() (answers, redirects uint64, err error) {
	if f.links == nil {
		return 0, 0, nil
	}
	var perCPU []failuresFailures
	if err := f.objects.Failed.Lookup(uint32(0), &perCPU); err != nil {
		return 0, 0, fmt.Errorf("bpf: read counters of failures: %w", err)
	}
	for _, c := range perCPU {
		answers += c.Answers
		redirects += c.Redirects
	}
	return answers, redirects, nil
}

func (f *failures) closeTracepoints() error {
	var errs []error
	for _, l := range f.links {
		errs = append(errs, l.Close())
	}
	f.links = nil
	return errors.Join(append(errs, f.objects.Close())...)
}

// CountsFailures returns nil if frames that the kernel did not send are counted, which starts with
// the first Attach, or the reason why they are not: it requires a kernel with BTF.
func (a *Aggregator) CountsFailures() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.failures.err
}
