package tenants

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"time"

	"github.com/libra-ina/libra/afxdp"
	"github.com/libra-ina/libra/control"
	pb "github.com/libra-ina/libra/control/controlpb"
	"github.com/libra-ina/libra/internal/proc"
	"github.com/libra-ina/libra/wire"
)

const (
	floodSlots = 1000
	floodBatch = 64
	floodRing  = 2048
)

// floodConfig is the job that floods.
type floodConfig struct {
	endpoint
	Duration time.Duration
}

// floodResult is what the flooder prints.
type floodResult struct {
	Frames  uint64
	Seconds float64
}

// run sends bad frames for a little longer than the tenants push.
func (c *floodConfig) run(ctx context.Context) (err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil) // ends the admission
	conn, client, err := c.dial(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	job, err := control.CreateJob(ctx, client, &pb.JobSpec{
		Job: floodJob, Mode: pb.Mode_MODE_SYNC, Arithmetic: pb.Arithmetic_ARITHMETIC_LUT, Workers: 2, Slots: floodSlots,
	}, startLimit, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	if err := job.Hold(ctx, cancel); err != nil {
		return err
	}
	admission, err := c.join(ctx, client, floodJob, nil)
	if err != nil {
		return err
	}
	f := &flooder{}
	defer func() { err = errors.Join(err, f.close()) }()
	if err := f.open(c, uint16(admission.Epoch)); err != nil {
		return err
	}
	if err := proc.AnnounceReady(os.Stdout, true); err != nil {
		return err
	}
	begin := time.Now()
	for time.Since(begin) < c.Duration+c.Duration/4 {
		if err := f.send(); err != nil {
			return err
		}
	}
	// Its cable is full of the flood, so the flooder is not the one to ask the
	// switch what became of it.
	return json.NewEncoder(os.Stdout).Encode(floodResult{Frames: f.sent, Seconds: time.Since(begin).Seconds()})
}

// badFrames returns one frame of each kind that the aggregator must not apply.
func (c *floodConfig) badFrames(epoch uint16) ([][]byte, error) {
	e, err := wire.NewEnvelope(
		wire.Endpoint{MAC: c.MAC, IP: c.IP, Port: wire.DefaultPort},
		wire.Endpoint{MAC: c.AggregatorMAC, IP: c.Aggregator, Port: wire.DefaultPort})
	if err != nil {
		return nil, err
	}
	build := func(change func(h *wire.Header, slot *uint16)) []byte {
		frame := make([]byte, e.Len()+wire.HotLen(1))
		h, slot := wire.Header{Type: wire.TypeHot, Job: floodJob, Sender: 1, Epoch: epoch, Seq: wire.FirstSeq}, uint16(0)
		change(&h, &slot)
		h.Put(frame[e.Len():])
		s := wire.StripeAt(frame[e.Len():], 0)
		s.SetMask(wire.LaneMask)
		for lane := range wire.Lanes {
			s.SetSlot(lane, slot)
			s.SetValue(lane, 1)
		}
		e.Seal(frame)
		return frame
	}
	checksum := build(func(*wire.Header, *uint16) {})
	checksum[len(checksum)-1] ^= 1
	return [][]byte{
		checksum,
		build(func(_ *wire.Header, slot *uint16) { *slot = floodSlots }),
		build(func(h *wire.Header, _ *uint16) { h.Epoch++ }),
		build(func(h *wire.Header, _ *uint16) { h.Sender = 2 }),
	}, nil
}

// flooder is an AF_XDP socket that only sends.
type flooder struct {
	umem *afxdp.UMEM
	sock *afxdp.Socket
	free []afxdp.Desc // frames with their bytes, ready to be sent
	done []afxdp.Frame
	off  uint16 // of the bytes in a frame
	len  uint32 // of all frames
	sent uint64
}

func (f *flooder) open(c *floodConfig, epoch uint16) error {
	bad, err := c.badFrames(epoch)
	if err != nil {
		return err
	}
	if f.umem, err = afxdp.NewUMEM(afxdp.UMEMConfig{Frames: floodRing, FrameSize: 2048}); err != nil {
		return err
	}
	pool, err := f.umem.NewPool(0)
	if err != nil {
		return err
	}
	f.sock, err = afxdp.Open(pool, afxdp.Config{
		Interface: c.Interface, RxFrames: -1, RxRing: floodRing, TxRing: floodRing, FillRing: floodRing, CompletionRing: floodRing,
	})
	if err != nil {
		return err
	}
	f.done = make([]afxdp.Frame, floodRing)
	f.off, f.len = uint16(f.umem.RxOffset()), uint32(len(bad[0]))
	for i, frame := range f.done[:pool.AllocBatch(f.done)] {
		copy(f.umem.Bytes(frame)[f.off:], bad[i%len(bad)])
		f.free = append(f.free, afxdp.Desc{Frame: frame, Off: f.off, Len: f.len})
	}
	return nil
}

// send queues what it can, wakes the kernel and takes back what it has sent.
func (f *flooder) send() error {
	n, err := f.sock.Send(f.free[:min(floodBatch, len(f.free))])
	if err != nil {
		return err
	}
	f.free = f.free[:copy(f.free, f.free[n:])]
	f.sent += uint64(n)
	if err := f.sock.Kick(); err != nil {
		return err
	}
	done, err := f.sock.Completed(f.done)
	for _, frame := range f.done[:done] {
		f.free = append(f.free, afxdp.Desc{Frame: frame, Off: f.off, Len: f.len})
	}
	return err
}

func (f *flooder) close() error {
	var errs []error
	if f.sock != nil {
		errs = append(errs, f.sock.Close())
	}
	if f.umem != nil {
		errs = append(errs, f.umem.Close())
	}
	return errors.Join(errs...)
}
