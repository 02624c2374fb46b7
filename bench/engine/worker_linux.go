package engine

import (
	"context"
	"errors"
	"net/netip"
	"runtime"

	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/retransmit"
	"github.com/libra-ina/libra/transport"
)

// pushWorker is package transport's worker: the whole reliable push path.
type pushWorker struct {
	worker  *transport.Worker
	load    []pushed
	frames  int // of a push
	next    int // number of the next push
	tickets [pushesFlying]*transport.Ticket
}

func openWorker(cfg *programConfig) (program, error) {
	// A worker has a goroutine of its own. Locked to a thread, this one could
	// change places with it only by way of the kernel; and the process has one CPU.
	runtime.UnlockOSThread()
	runtime.GOMAXPROCS(1)

	hot, load, err := pushWorkload()
	if err != nil {
		return nil, err
	}
	local, aggregator := cfg.pushEnds()
	l, err := link.OpenAFXDP(link.AFXDPConfig{
		Interface: cfg.Interface, Local: netip.AddrPortFrom(local.IP, local.Port), Spin: spin,
	})
	if err != nil {
		return nil, err
	}
	server := aggregator // which no frame goes to, since all keys are hot
	server.Port++
	worker, err := transport.NewWorker(context.Background(), transport.WorkerConfig{
		Link: l, Job: pushJob, Sender: pushSender, AggregatorEpoch: pushEpoch,
		HotSet: hot, Layout: packer.Dense, Stripes: pushStripes(cfg.Size),
		Aggregator: aggregator, Server: server, Flow: retransmit.Config{Size: pushWindow},
	})
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return &pushWorker{worker: worker, load: load, frames: pushFrames(pushStripes(cfg.Size))}, nil
}

// push waits for the oldest push and queues another in its place.
func (p *pushWorker) push() (acked int, err error) {
	ticket := &p.tickets[p.next%len(p.tickets)]
	if *ticket != nil {
		if err := (*ticket).Wait(context.Background()); err != nil {
			return 0, err
		}
		acked = p.frames
	}
	load := p.load[p.next%len(p.load)]
	p.next++
	*ticket, err = p.worker.PushLater(context.Background(), load.keys, load.grads)
	return acked, err
}

func (p *pushWorker) drops() (map[string]uint64, error) {
	s, err := p.worker.Stats(context.Background())
	return map[string]uint64{
		"worker: repeated":        s.Hot.Retransmitted,
		"worker: answered twice":  s.Hot.Repeated,
		"worker: bad answer":      s.Malformed + s.Stray,
		"socket: driver refused":  s.Link.SendError,
		"socket: RX dropped":      s.Link.Overrun,
		"worker: foreign or torn": s.Link.Foreign + s.Link.Truncated + s.Link.BadChecksum,
	}, err
}

func (p *pushWorker) close() error { return p.worker.Close() }
