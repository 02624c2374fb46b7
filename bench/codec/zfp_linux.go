// SPDX-License-Identifier: Apache-2.0

package codec

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"github.com/libra-ina/libra/bench/baselines"
	"github.com/libra-ina/libra/internal/linux/sys"
	"github.com/libra-ina/libra/internal/report/experiment"
)

// zfp is the program that shortens values by the library of that name.
type zfp struct {
	program *baselines.Executable
	memory  *sys.Shared // the values, and then those that came back
	floats  []float32   // the same
}

// openZFP builds the program for some values. Where that is impossible, it says why.
func openZFP(ctx context.Context, values []float32) (_ *zfp, missing *experiment.Unavailable, err error) {
	program, err := baselines.ZFP.Build(ctx)
	if missing := baselines.ZFP.Missing(ZFP, err); missing != nil {
		return nil, missing, nil
	}
	if err != nil {
		return nil, nil, err
	}
	memory, err := sys.NewShared("values", 2*4*len(values))
	if err != nil {
		return nil, nil, errors.Join(err, program.Close())
	}
	z := &zfp{program, memory, unsafe.Slice((*float32)(unsafe.Pointer(&memory.Mem[0])), 2*len(values))}
	copy(z.floats, values)
	return z, nil, nil
}

// method is zfp with a bound 2^-E.
func (z *zfp) method(bound int) method {
	values := z.floats[:len(z.floats)/2]
	return method{ZFP, bound, func(ctx context.Context) (Sample, error) {
		cmd := exec.CommandContext(ctx, z.program.Path(), strconv.Itoa(len(values)),
			strconv.FormatFloat(errorOf(bound), 'g', -1, 64), strconv.FormatInt(int64(least), 10))
		cmd.ExtraFiles = []*os.File{z.memory.File}
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // Run keeps this thread
		var complaints bytes.Buffer
		cmd.Stderr = &complaints
		out, err := cmd.Output()
		if err != nil {
			if ctx.Err() != nil {
				err = context.Cause(ctx)
			}
			return Sample{}, fmt.Errorf("%w: %s", err, strings.TrimSpace(complaints.String()))
		}
		var took struct {
			Encode int64 `json:"encode_ns"`
			Decode int64 `json:"decode_ns"`
			Bytes  int   `json:"bytes"`
		}
		if err := json.Unmarshal(out, &took); err != nil {
			return Sample{}, fmt.Errorf("it printed %q: %w", out, err)
		}
		rate := func(ns int64) float64 { return float64(4*len(values)) / float64(ns) }
		return Sample{Encode: rate(took.Encode), Decode: rate(took.Decode), Ratio: ratioOf(len(values), took.Bytes)},
			check(values, z.floats[len(values):], bound)
	}}
}

func (z *zfp) close() error { return errors.Join(z.memory.Close(), z.program.Close()) }
