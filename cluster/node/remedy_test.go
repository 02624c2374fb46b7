// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"io"
	"math"
	"net/netip"
	"strings"
	"testing"

	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/retransmit"
	"github.com/libra-ina/libra/train"
	"github.com/libra-ina/libra/train/data"
	"github.com/libra-ina/libra/transport"
	"github.com/libra-ina/libra/wire"
)

// An error of gradients that no arithmetic holds gets a remedy that makes them smaller. Other
// errors stay as they are.
func TestRemedyOfLargeGradients(t *testing.T) {
	overflow := fmt.Errorf("a push: %w", wire.Refusal{Code: wire.CodeOverflow})
	stamp, both := []data.Largest{{Key: 7, Value: 1.7e9}}, []data.Largest{{Key: 7, Value: 40}, {Key: 2, Value: 30}}
	const diverges = ", because training diverges: lower the learning rate"
	const scale = ": scale feature 7 (values up to 1.7e+09), for example by its standard deviation"
	for name, c := range map[string]struct {
		err          error
		failure      train.Failure
		task         data.Task
		begins, ends string
	}{
		"diverges":                   {overflow, train.Failure{Begin: 1, Batch: 64}, data.Classification, "a push: ", diverges},
		"small labels":               {overflow, train.Failure{Begin: 1, Batch: 64, Label: 0.01}, data.Regression, "a push: ", diverges},
		"not finite":                 {fmt.Errorf("a push: %w", wire.Refusal{Code: wire.CodeNotFinite}), train.Failure{Begin: 1}, data.Classification, "a push: ", diverges},
		"found here":                 {fmt.Errorf("a push: %w", &packer.NotFiniteError{Key: 77, Value: 5}), train.Failure{Begin: 1}, data.Classification, "a gradient of feature 77 is 5: ", diverges},
		"of the intercept":           {&packer.NotFiniteError{Key: data.BiasKey, Value: 5}, train.Failure{Begin: 1}, data.Classification, "a gradient of the intercept is 5: ", diverges},
		"a time stamp":               {overflow, train.Failure{Begin: 1e8, Large: stamp, Batch: 64, Label: 1}, data.Classification, "a push: ", scale},
		"a time stamp, small labels": {overflow, train.Failure{Begin: 1e5, Large: stamp, Batch: 64, Label: 0.004}, data.Regression, "a push: ", scale},
		"a late time stamp":          {overflow, train.Failure{Begin: 1, Large: stamp, Batch: 64, Label: 1}, data.Classification, "a push: ", scale},
		"no number":                  {&packer.NotFiniteError{Key: 3, Value: 5}, train.Failure{Begin: math.Inf(1), Large: []data.Largest{{Key: 3, Value: 3e38}}, Batch: 64}, data.Classification, "a gradient of feature 3 is 5: ", ": scale feature 3 (values up to 3e+38), for example by its standard deviation"},
		"large features":             {overflow, train.Failure{Begin: 100, Large: both, Batch: 64, Label: 1}, data.Classification, "a push: ", ": scale features such as 7 (values up to 40), 2 (values up to 30), each for example by its standard deviation, or lower the learning rate"},
		"large labels":               {overflow, train.Failure{Begin: 1e6, Batch: 64, Label: 9e6}, data.Regression, "a push: ", ": divide the labels by a number such as their standard deviation (they go up to 9e+06)"},
		"labels of 20":               {overflow, train.Failure{Begin: 10, Batch: 64, Label: 20}, data.Regression, "a push: ", ": divide the labels by a number such as their standard deviation (they go up to 20), or lower the learning rate"},
		"a late large label":         {overflow, train.Failure{Begin: 1, Batch: 64, Label: 9e6}, data.Regression, "a push: ", ": divide the labels by a number such as their standard deviation (they go up to 9e+06)"},
		"their product":              {overflow, train.Failure{Begin: 1, Large: []data.Largest{{Key: 7, Value: 1000}}, Batch: 64, Label: 1000}, data.Regression, "a push: ", ": scale feature 7 (values up to 1000), for example by its standard deviation, or divide the labels by a number such as their standard deviation (they go up to 1000)"},
		"small in a mini-batch":      {overflow, train.Failure{Begin: 1, Large: []data.Largest{{Key: 7, Value: 1e4}}, Batch: 64}, data.Classification, "a push: ", ": scale feature 7 (values up to 10000), for example by its standard deviation, or lower the learning rate"},
		"large weights":              {overflow, train.Failure{Begin: 1e6, Batch: 64, Label: 1}, data.Classification, "a push: ", ": lower the bound of the initial weights (model.init_scale, --init-scale)"},
		"large weights, trained":     {overflow, train.Failure{Begin: 1e6, Weights: 1.0001e5, Batch: 64, Label: 1}, data.Classification, "a push: ", ": lower the bound of the initial weights (model.init_scale, --init-scale)"},
		"diverged before it began":   {overflow, train.Failure{Begin: math.Inf(1), Weights: 1e30, Batch: 64, Label: 1}, data.Classification, "a push: ", diverges},
		"a diverged checkpoint":      {overflow, train.Failure{Begin: 1e6, Batch: 64, Label: 1, Resumed: true}, data.Classification, "a push: ", ": remove the checkpoint, if the weights in it have diverged"},
	} {
		failed := c.failure
		failed.Err = c.err
		got := withRemedy(fmt.Errorf("train: %w", &failed), c.err, c.task, 1e5)
		if !strings.HasPrefix(got.Error(), c.begins) || !strings.HasSuffix(got.Error(), ": gradients are too large"+c.ends) || strings.Contains(got.Error(), "put a finite number there") {
			t.Errorf("%s: %v, want one that begins with %q and ends with %q", name, got, c.begins, c.ends)
		}
	}
	for _, other := range []error{fmt.Errorf("a push: %w", wire.Refusal{Code: wire.CodeSlotRange}), io.ErrUnexpectedEOF} {
		if got := withRemedy(&train.Failure{Err: other}, other, data.Classification, 0.01); got != other { //nolint:errorlint // it is the same one
			t.Errorf("%v becomes %v", other, got)
		}
	}
}

// The loss of a peer that has never answered names the field with its address. One that has
// answered is at its address.
func TestFieldOfSilentPeer(t *testing.T) {
	at := func(last byte) netip.Addr { return netip.AddrFrom4([4]byte{127, 0, 0, last}) }
	c := &cluster.Config{Switch: cluster.Switch{Address: at(1)}, Standbys: []cluster.Standby{{Address: at(2)}, {Address: at(3)}},
		Server: cluster.Server{Host: cluster.Host{Address: at(4)}}, Switches: []cluster.FabricSwitch{{Address: at(1)}, {Address: at(5)}}}
	loss := func(last byte, acked uint64) error {
		return fmt.Errorf("a push: %w", &transport.PeerError{Role: "a peer", Addr: netip.AddrPortFrom(at(last), 19201),
			Err: &retransmit.SilentPeerError{Acked: acked}})
	}
	for last, field := range map[byte]string{1: "switch", 2: "standbys[0]", 3: "standbys[1]", 4: "server", 5: "switches[1]"} {
		if got := withField(c, loss(last, 0)); !strings.HasSuffix(got.Error(), fmt.Sprintf("; it has never answered: is %s.address the address at which its daemon serves?", field)) {
			t.Errorf("%s: %v", field, got)
		}
	}
	for _, same := range []error{loss(2, 1), loss(6, 0), io.EOF} {
		if got := withField(c, same); got != same { //nolint:errorlint // it is the same one
			t.Errorf("%v becomes %v", same, got)
		}
	}
}

// Rows of an unknown task are not opened.
func TestRowsOfAnUnknownTask(t *testing.T) {
	c := &cluster.Config{Model: cluster.Model{Task: "guess"}, Data: cluster.Data{Synthetic: &cluster.Synthetic{Rows: 1}}}
	if src, err := OpenSource(c, data.Shard{}); src != nil || err == nil || !strings.Contains(err.Error(), "guess") {
		t.Errorf("%v, %v", src, err)
	}
}

// A worker of a job without training rows is told where they could come from.
func TestNoTrainingRows(t *testing.T) {
	if _, err := OpenSource(&cluster.Config{Model: cluster.Model{Task: data.Regression.String()}}, data.Shard{}); err == nil ||
		!strings.Contains(err.Error(), "give data.train (a file) or data.synthetic, or let processes train through 'libra agent'") {
		t.Errorf("%v", err)
	}
}
