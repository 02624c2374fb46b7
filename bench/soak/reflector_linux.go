package soak

import (
	"context"
	"errors"

	"github.com/cilium/ebpf"

	"github.com/libra-ina/libra/afxdp"
)

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
