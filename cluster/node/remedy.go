// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/internal/num/fixedpoint"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/retransmit"
	"github.com/libra-ina/libra/train"
	"github.com/libra-ina/libra/train/data"
	"github.com/libra-ina/libra/transport"
	"github.com/libra-ina/libra/wire"
)

// withRemedy adds a remedy to the reason why a training failed, if gradients were too large for the
// arithmetic: users know their features, labels and rates, not gradients.
func withRemedy(failed, reason error, task data.Task, initScale float64) error {
	refusal, here := wire.Refusal{}, (*packer.NotFiniteError)(nil)
	refused := errors.As(reason, &refusal) && (refusal.Code == wire.CodeOverflow || refusal.Code == wire.CodeNotFinite)
	switch {
	case errors.As(reason, &here): // without the remedy for programmers
		reason = fmt.Errorf("a gradient of %s is %v", rowName(here.Key), here.Value)
	case !refused:
		return reason
	}
	failure := &train.Failure{}
	errors.As(failed, &failure)
	return fmt.Errorf("%w: gradients are too large%s", reason, remedies(failure, task, initScale))
}

// withField adds the field of the cluster file to the loss of a peer that has never answered: its
// address may not be that of its daemon, whose control service has an address of its own.
func withField(c *cluster.Config, reason error) error {
	peer, silent := (*transport.PeerError)(nil), (*retransmit.SilentPeerError)(nil)
	if !errors.As(reason, &peer) || !errors.As(reason, &silent) || silent.Acked > 0 {
		return reason
	}
	if field := c.AddressField(peer.Addr.Addr()); field != "" {
		return fmt.Errorf("%w; it has never answered: is %s the address at which its daemon serves?", reason, field)
	}
	return reason
}

func rowName(key uint64) string {
	if key == data.BiasKey {
		return "the intercept"
	}
	return fmt.Sprintf("feature %d", key)
}

// inRange is a gradient from which on sums of mini-batches may exceed what exact arithmetic holds.
var inRange = math.Ldexp(1, 63+fixedpoint.DefaultExp-4)

// remedies returns what makes gradients smaller. A lower learning rate does so only where weights
// have grown since the beginning, and not where values alone are too large. initScale bounds
// initial weights.
func remedies(f *train.Failure, task data.Task, initScale float64) string {
	var all []string
	largest := 1.0
	if n := len(f.Large); n > 0 {
		largest = float64(f.Large[0].Value)
		var names []string
		for _, l := range f.Large {
			names = append(names, fmt.Sprintf("%d (values up to %g)", l.Key, l.Value))
		}
		if n == 1 {
			all = append(all, fmt.Sprintf("scale feature %s, for example by its standard deviation", names[0]))
		} else {
			all = append(all, fmt.Sprintf("scale features such as %s, each for example by its standard deviation",
				strings.Join(names, ", ")))
		}
	}
	if label := float64(f.Label); task == data.Regression && label > largeLabel {
		all = append(all, fmt.Sprintf("divide the labels by a number such as their standard deviation (they go up to %g)", label))
		largest *= label
	}
	// Weights beyond their initial bound have been trained before, by other workers of an
	// asynchronous job.
	grown := f.Begin < inRange || !f.Resumed && f.Weights > 2*initScale
	rateHelps := grown && largest < inRange*float64(max(f.Batch, 1))
	switch {
	case rateHelps && len(all) == 0:
		return ", because training diverges: lower the learning rate"
	case rateHelps:
		all = append(all, "lower the learning rate")
	case f.Resumed && f.Begin >= inRange:
		all = append(all, "remove the checkpoint, if the weights in it have diverged")
	case len(all) == 0:
		all = append(all, "lower the bound of the initial weights (model.init_scale, --init-scale)")
	}
	return ": " + strings.Join(all, ", or ")
}

// largeLabel is more than labels of a standard deviation of 1 usually reach.
const largeLabel = 10
