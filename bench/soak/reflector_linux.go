package soak

import (
	"context"
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/rlimit"

	"github.com/libra-ina/libra/afxdp"
)

// loadReflector loads the XDP program that sends packets of the soak back:
//
//	if (data + 14 > data_end || eth->proto != htons(etherType))
//		return XDP_PASS;
//	return XDP_TX;
func loadReflector() (*ebpf.Program, error) {
	const (
		mdData, mdDataEnd = 0, 4 // offsets in struct xdp_md
		xdpPass, xdpTx    = 2, 3
	)
	if err := rlimit.RemoveMemlock(); err != nil {
		return nil, fmt.Errorf("soak: %w", err)
	}
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "soak_reflect", Type: ebpf.XDP, License: "Dual BSD/GPL",
		Instructions: asm.Instructions{
			asm.LoadMem(asm.R2, asm.R1, mdData, asm.Word),
			asm.LoadMem(asm.R3, asm.R1, mdDataEnd, asm.Word),
			asm.Mov.Imm(asm.R0, xdpPass),
			asm.Mov.Reg(asm.R4, asm.R2),
			asm.Add.Imm(asm.R4, headerSize),
			asm.JGT.Reg(asm.R4, asm.R3, "done"),
			asm.LoadMem(asm.R4, asm.R2, 12, asm.Half),
			asm.HostTo(asm.BE, asm.R4, asm.Half),
			asm.JNE.Imm(asm.R4, etherType, "done"),
			asm.Mov.Imm(asm.R0, xdpTx),
			asm.Return().WithSymbol("done"),
		},
	})
	if err != nil {
		return nil, fmt.Errorf("soak: load the program that sends back: %w", err)
	}
	return prog, nil
}

// reflector is the far end of link "xdp".
type reflector struct {
	link     *link
	prog     *ebpf.Program
	attached *afxdp.Attachment
}

func (r *reflector) start(context.Context) (err error) {
	if r.prog == nil {
		if r.prog, err = loadReflector(); err != nil {
			return err
		}
	}
	return r.link.far.Do(func() error {
		r.attached, err = afxdp.Attach(afxdp.AttachConfig{Interface: farName, Program: r.prog, Mode: afxdp.AttachNative})
		return err
	})
}

func (r *reflector) stop() error { return r.attached.Close() }

func (r *reflector) relinked() error { return r.link.far.Do(r.attached.Reattach) }

// account counts nothing: no frame stays at this end.
func (r *reflector) account(context.Context) (*Account, Memory, error) {
	return nil, Memory{}, nil
}

func (r *reflector) status(context.Context) string { return "an XDP program" }

func (r *reflector) failed() error { return nil }

func (r *reflector) close() error {
	var err error
	if r.attached != nil {
		err = r.attached.Close()
	}
	return errors.Join(err, r.prog.Close())
}
