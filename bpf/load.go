// SPDX-License-Identifier: Apache-2.0

//go:build linux

package bpf

import (
	"errors"
	"fmt"
	"strings"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/internal/linux/sys"
)

// ErrPermission means that the process lacks a capability; the error names it.
var ErrPermission = errors.New("bpf: missing privilege")

// load creates the maps and loads the program of spec into objects.
func load(spec *ebpf.CollectionSpec, objects any) error {
	return explain(spec.LoadAndAssign(objects, nil))
}

// explain adds the meaning and the remedy to an error of the kernel. A refusal by the verifier
// stays an [*ebpf.VerifierError] with the whole log; format it with %+v.
func explain(err error) error {
	if err == nil {
		return nil
	}
	var verifier *ebpf.VerifierError
	missing := missingCapabilities()
	switch {
	// Without CAP_PERFMON the verifier refuses, with EACCES.
	case missing != "" && (errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES)):
		return fmt.Errorf("%w: XDP programs need %s; run as root or grant them: %w", ErrPermission, missing, err)
	case errors.As(err, &verifier):
		return fmt.Errorf("bpf: the kernel's verifier refuses the program; it is written for Linux 6.1 and later: %w", err)
	case errors.Is(err, ebpf.ErrNotSupported):
		return fmt.Errorf("bpf: Linux 6.1 or later is needed: %w", err)
	}
	return fmt.Errorf("bpf: %w", err)
}

// missingCapabilities returns the required capabilities that the calling thread lacks, or "".
func missingCapabilities() string {
	// The verifier requires CAP_PERFMON for computed offsets into packets. On an error none is
	// named.
	missing, _ := sys.MissingCapabilities(sys.CapBPF, sys.CapNetAdmin, sys.CapPerfmon)
	return strings.Join(missing, ", ")
}
