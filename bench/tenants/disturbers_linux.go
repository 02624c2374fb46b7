// SPDX-License-Identifier: Apache-2.0

package tenants

import (
	"context"
	"errors"
	"math"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/libra-ina/libra/afxdp"
	"github.com/libra-ina/libra/control"
	"github.com/libra-ina/libra/control/access"
	pb "github.com/libra-ina/libra/control/controlpb"
	"github.com/libra-ina/libra/wire"
)

const (
	floodJob     = 3
	floodSlots   = 30_000
	floodSenders = 64 // as many as a job gets that does not ask for more
	floodBatch   = 64
	floodRing    = 2048
)

func (c *childConfig) flood(ctx context.Context) error {
	spec := &pb.JobSpec{
		Job: floodJob, Mode: pb.Mode_MODE_FETCHADD, Arithmetic: pb.Arithmetic_ARITHMETIC_EXACT, Slots: floodSlots,
		Senders: floodSenders,
	}
	return c.WithJob(ctx, spec, func(ctx context.Context, client pb.AggregatorClient, _ *control.Owned) (err error) {
		var epochs [floodSenders]uint16
		for i := range epochs {
			admission, err := c.Join(ctx, client, floodJob, uint32(i), nil)
			if err != nil {
				return err
			}
			epochs[i] = uint16(admission.Epoch)
		}
		f, err := c.openFlooder(epochs[:])
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, f.group.Close()) }()
		return whenAsked(ctx, func(ctx context.Context) (Flood, error) { return f.run(ctx, c.Duration+c.Duration/4) })
	})
}

// badFrames returns n frames that cost the aggregator much and bring its job
// nothing, of all admitted senders in turn, by their epochs.
func (c *childConfig) badFrames(epochs []uint16, n int) ([][]byte, error) {
	e, err := wire.NewEnvelope(c.Self, c.Aggregator)
	if err != nil {
		return nil, err
	}
	frames := make([][]byte, n)
	for i := range frames {
		sender := i % len(epochs)
		frames[i] = badFrame(e, wire.Header{
			Type: wire.TypeHot, Flags: wire.FlagDense, Job: floodJob, Sender: uint16(sender), Epoch: epochs[sender],
			Seq: uint32(wire.FirstSeq + i/len(epochs)),
		}, badKinds[i/len(epochs)%len(badKinds)])
	}
	return frames, nil
}

// badKinds spoil the header or the last stripe of a frame of each kind; nil spoils
// its checksum. All have as many pairs as fit, so that what is wrong with the last
// is found late.
var badKinds = []func(h *wire.Header, last *wire.Stripe){
	overflow, expensiveSums, lastRank, overflow, expensiveSums, lastRank, unknownSender, nil,
}

const last = floodSlots - 1

// overflow makes the last sum overflow, once two of them were added: all additions
// before it have to be undone.
func overflow(_ *wire.Header, s *wire.Stripe) {
	s.SetSlot(wire.Lanes-1, last)
	s.SetValue(wire.Lanes-1, 60_000) // sums reach 2^17
}

// expensiveSums asks for the sums, and makes the last two values half the range of
// a sum, so that every sum has to be looked at.
func expensiveSums(h *wire.Header, s *wire.Stripe) {
	h.Flags |= wire.FlagWantSum
	for i, value := range []float32{1 << 16, -1 << 16} {
		s.SetSlot(wire.Lanes-2+i, last-1)
		s.SetValue(wire.Lanes-2+i, value)
	}
}

// lastRank asks for the sums, and puts the last rank out of range.
func lastRank(h *wire.Header, s *wire.Stripe) {
	h.Flags |= wire.FlagWantSum
	s.SetSlot(wire.Lanes-1, math.MaxUint16)
}

func unknownSender(h *wire.Header, _ *wire.Stripe) { h.Sender = floodSenders }

// badFrame returns a full frame that adds 1 to different slots and is spoilt.
func badFrame(e *wire.Envelope, h wire.Header, spoil func(*wire.Header, *wire.Stripe)) []byte {
	frame := make([]byte, e.Len()+wire.HotLen(wire.DefaultStripes))
	payload := frame[e.Len():]
	h.Put(payload)
	first := int(h.Seq) * wire.DefaultStripes * wire.Lanes
	for i := range wire.DefaultStripes {
		s := wire.StripeAt(payload, i)
		s.SetMask(wire.LaneMask)
		for lane := range wire.Lanes {
			s.SetSlot(lane, uint16((first+i*wire.Lanes+lane)%(last-1)))
			s.SetValue(lane, 1)
		}
	}
	if spoil != nil {
		spoil(&h, wire.StripeAt(payload, wire.DefaultStripes-1))
		h.Put(payload)
	}
	e.Seal(frame)
	if spoil == nil {
		frame[len(frame)-1] ^= 1
	}
	return frame
}

// flooder is an AF_XDP socket that only sends.
type flooder struct {
	group *afxdp.Group
	sock  *afxdp.Socket
	free  []afxdp.Desc // frames with their bytes, ready to be sent
	done  []afxdp.Frame
	off   uint16 // offset of the bytes in a frame
	len   uint32 // of all frames
	sent  uint64
}

func (c *childConfig) openFlooder(epochs []uint16) (*flooder, error) {
	bad, err := c.badFrames(epochs, floodRing)
	if err != nil {
		return nil, err
	}
	group, err := afxdp.OpenAll(c.Interface, afxdp.GroupConfig{Queues: []int{0}, Frames: floodRing, Socket: afxdp.Config{
		RxFrames: -1, RxRing: floodRing, TxRing: floodRing, FillRing: floodRing, CompletionRing: floodRing,
	}})
	if err != nil {
		return nil, err
	}
	f := &flooder{group: group, sock: group.Sockets()[0], done: make([]afxdp.Frame, floodRing), len: uint32(len(bad[0]))}
	umem := f.sock.UMEM()
	f.off = uint16(umem.RxOffset())
	for i, frame := range f.done[:f.sock.Pool().AllocBatch(f.done)] {
		copy(umem.Bytes(frame)[f.off:], bad[i])
		f.free = append(f.free, afxdp.Desc{Frame: frame, Off: f.off, Len: f.len})
	}
	return f, nil
}

// run sends bad frames for a little longer than the tenants push. Its cable is
// full of them, so the flooder is not the one to ask the switch what became of
// the flood.
func (f *flooder) run(ctx context.Context, d time.Duration) (Flood, error) {
	begin := time.Now()
	for time.Since(begin) < d && ctx.Err() == nil {
		if err := f.send(); err != nil {
			return Flood{}, err
		}
	}
	return Flood{FloodFrames: f.sent, FloodSeconds: time.Since(begin).Seconds()}, context.Cause(ctx)
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

const (
	churnJob   = 4
	firstChurn = 100 // the first job that is created again and again
	churnLoops = 4   // of each kind
)

// churn is a tenant whose senders and jobs come and go, as fast as the
// daemon answers.
func (c *childConfig) churn(ctx context.Context) error {
	return c.WithJob(ctx, churnSpec(churnJob), func(ctx context.Context, client pb.AggregatorClient,
		_ *control.Owned) error {
		return whenAsked(ctx, func(ctx context.Context) (Churn, error) { return c.comeAndGo(ctx, client) })
	})
}

// comeAndGo churns for a little longer than the tenants push.
func (c *childConfig) comeAndGo(ctx context.Context, client pb.AggregatorClient) (_ Churn, err error) {
	begin := time.Now()
	end := begin.Add(c.Duration + c.Duration/4)
	var joins, jobs atomic.Uint64
	loops, ctx := errgroup.WithContext(ctx)
	for i := range churnLoops {
		loops.Go(func() error {
			return repeat(end, &joins, func() error { return c.joinAndLeave(ctx, client, uint32(i)) })
		})
		loops.Go(func() error {
			return repeat(end, &jobs, func() error { return createAndRemove(ctx, client, firstChurn+uint32(i)) })
		})
	}
	err = loops.Wait()
	return Churn{Joins: joins.Load(), Jobs: jobs.Load(), ChurnSeconds: time.Since(begin).Seconds()}, err
}

// repeat does something until a time, and counts. What has begun is finished: the
// daemon would give up a call with a deadline before the caller knows of it.
func repeat(end time.Time, n *atomic.Uint64, do func() error) error {
	for ; time.Now().Before(end); n.Add(1) {
		if err := do(); err != nil {
			return err
		}
	}
	return nil
}

func (c *childConfig) joinAndLeave(ctx context.Context, client pb.AggregatorClient, sender uint32) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	admission, err := c.Join(ctx, client, churnJob, sender, nil)
	if err != nil {
		return err
	}
	_, err = client.Leave(ctx, &pb.LeaveRequest{Job: churnJob, Sender: sender, Token: admission.Token})
	return access.CallError(access.SwitchDaemon, "leave", err)
}

func churnSpec(id uint32) *pb.JobSpec {
	return &pb.JobSpec{
		Job: id, Mode: pb.Mode_MODE_COMBINE, Arithmetic: pb.Arithmetic_ARITHMETIC_EXACT, Slots: slots, Senders: churnLoops,
	}
}

func createAndRemove(ctx context.Context, client pb.AggregatorClient, id uint32) error {
	job, err := client.CreateJob(ctx, churnSpec(id))
	if err != nil {
		return access.CallError(access.SwitchDaemon, "create job", err)
	}
	_, err = client.RemoveJob(ctx, &pb.RemoveJobRequest{Job: id, Key: job.Key})
	return access.CallError(access.SwitchDaemon, "remove job", err)
}
