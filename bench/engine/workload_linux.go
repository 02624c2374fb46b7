package engine

import (
	"math/rand/v2"
	"slices"

	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/wire"
)

// What is pushed. A push fills pushFrames(stripes) frames to the last lane, so
// that all frames of a test have the size of the test.
const (
	hotKeys      = 30_000
	zipfExponent = 1.1
	pushKeys     = 19 * wire.MaxStripes * wire.Lanes // distinct keys of a push: 4180
	pushBatches  = 256                               // different pushes, used in turn
	pushesFlying = 16                                // pushes that are not acknowledged
	workloadSeed = 1
)

// pushWindow is how many frames are not acknowledged, of both programs. It is a power
// of two, as a worker's window has to be. A veth ring holds 256, but gives room back
// 16 at a time, so 256 in flight lose some, which a worker repeats after a timeout.
const pushWindow = 128

// Where the far end's aggregator expects pushes from, and as what.
const (
	pushJob    = 1
	pushSender = 1
	pushEpoch  = 1
)

// pushFrames returns how many frames a push takes, each of a number of stripes.
func pushFrames(stripes int) int { return pushKeys / (stripes * wire.Lanes) }

// pushed is one push: distinct hot keys in ascending order, as the features of a
// batch are, and a gradient for each.
type pushed struct {
	keys  []uint64
	grads []float32
}

// pushWorkload draws the hot set and the pushes, the same in every process.
func pushWorkload() (*packer.HotSet, []pushed, error) {
	rng := rand.New(rand.NewPCG(workloadSeed, hotKeys))
	ranked := make([]uint64, hotKeys) // far apart, as hashed features are
	for rank := range ranked {
		ranked[rank] = rng.Uint64()
	}
	hot, err := packer.NewHotSet(1, ranked, nil, packer.Meta{})
	if err != nil {
		return nil, nil, err
	}
	zipf := rand.NewZipf(rng, zipfExponent, 1, hotKeys-1)
	load := make([]pushed, pushBatches)
	drawnFor := make([]int, hotKeys) // by rank: number of the last push that it is in, from 1 on
	for i := range load {
		p := pushed{keys: make([]uint64, 0, pushKeys), grads: make([]float32, pushKeys)}
		for len(p.keys) < pushKeys {
			if rank := zipf.Uint64(); drawnFor[rank] != i+1 {
				drawnFor[rank] = i + 1
				p.keys = append(p.keys, ranked[rank])
			}
		}
		slices.Sort(p.keys)
		for k := range p.grads {
			p.grads[k] = rng.Float32() - 0.5
		}
		load[i] = p
	}
	return hot, load, nil
}

// pushEnds returns the ends of the flow to the aggregator. Frames of a test carry
// their Ethernet addresses.
func (c *programConfig) pushEnds() (worker, aggregator wire.Endpoint) {
	worker = wire.Endpoint{MAC: [6]byte(c.frame[6:12]), IP: c.Local, Port: wire.DefaultPort}
	return worker, wire.Endpoint{MAC: [6]byte(c.frame[:6]), IP: c.Remote, Port: wire.DefaultPort}
}
