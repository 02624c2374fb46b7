// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/train"
)

// swappedPlane counts the frames that were harvested from it.
type swappedPlane struct {
	aggregator.Plane
	frames *atomic.Uint64
}

func (p swappedPlane) Swap(job uint16) (*aggregator.Bank, error) {
	b, err := p.Plane.Swap(job)
	if err == nil {
		p.frames.Add(b.Frames)
	}
	return b, err
}

// addStandbys gives a cluster standbys on the loopback interface.
func addStandbys(t *testing.T, c *cluster.Config, n int) {
	t.Helper()
	for i := range n {
		at := c.Switch.Address.As4()
		at[3] = byte(200 + i)
		address := netip.AddrFrom4(at)
		c.Standbys = append(c.Standbys, cluster.Standby{Address: address, Control: netip.AddrPortFrom(address, freePort(t, address))})
	}
	c.SetDefaults()
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
}

// sameEpochs is a source of randomness with which all aggregators begin to count epochs at the same
// number: each must be told which ones workers had at others.
func sameEpochs() io.Reader {
	zeros := bytes.NewReader(make([]byte, 8*aggregator.MaxJobs))
	return io.MultiReader(io.LimitReader(rand.Reader, 8), zeros, rand.Reader) // the run's number comes first
}

// runAggregator runs one of a cluster's aggregators, and counts what was harvested from it.
func runAggregator(t *testing.T, c *cluster.Config, at int) (harvested *atomic.Uint64, stop func()) {
	t.Helper()
	own := c
	if at > 0 {
		var err error
		if own, err = c.ForStandby(at - 1); err != nil {
			t.Fatal(err)
		}
	}
	harvested = new(atomic.Uint64)
	plane := func(p aggregator.Plane) aggregator.Plane { return swappedPlane{p, harvested} }
	stop = runSwitchOn(t, own, testLog(t), Machine{Plane: plane, Random: sameEpochs()})
	return harvested, stop
}

// A training whose switch ends goes on at a standby, and when that ends, at the switch, which is
// back: with barriers to the weights of one process, bit for bit.
func TestJobGoesOnAtStandbys(t *testing.T) {
	t.Parallel()
	for _, inStep := range []bool{true, false} {
		for _, servers := range []int{1, 2} {
			t.Run(fmt.Sprintf("sync %v, %d servers", inStep, servers), func(t *testing.T) {
				c := newCluster(t, 2)
				addStandbys(t, c, 1)
				c.Data.Synthetic.Rows = 6003
				serve(t, c, inStep, servers)
				frames, stop := make([]*atomic.Uint64, 3), make([]func(), 3)
				for at := range 2 {
					frames[at], stop[at] = runAggregator(t, c, at)
				}
				await := func(at int) {
					for end := time.Now().Add(20 * time.Second); frames[at].Load() == 0; time.Sleep(time.Millisecond) {
						if time.Now().After(end) {
							t.Errorf("nothing was harvested from aggregator %d", at)
							return
						}
					}
				}
				var back sync.WaitGroup // of the switch
				out := trainSharded(t.Context(), t, c, nil, func(p train.Progress, _ []func()) {
					switch p.Steps {
					case 5:
						stop[0]()
					case 20: // in a mini-batch of this worker the other one's frames may come first
						back.Go(func() {
							await(1)
							frames[2], stop[2] = runAggregator(t, c, 0)
							stop[1]()
						})
					}
				})
				back.Wait()
				if err := errors.Join(out.errs...); err != nil {
					t.Fatal(err)
				}
				if stop[2] == nil {
					t.Fatal("the training ended before the standby was used")
				}
				stop[2]()
				if frames[2].Load() == 0 {
					t.Error("nothing was harvested from the switch that came back")
				}
				want, got := reference(t, c), merged(t, c)
				if inStep && hash(got) != hash(want) {
					t.Errorf("weights %s, in one process %s", hash(got), hash(want))
				}
				if got.Len() != want.Len() {
					t.Errorf("%d rows, in one process %d", got.Len(), want.Len())
				}
			})
		}
	}
}

// unmarkedPlane is one whose banks have no marks.
type unmarkedPlane struct{ aggregator.Plane }

func (unmarkedPlane) HasMarks() bool { return false }

// An aggregator that does not tell whose frames a harvest has cannot be left. A job with standbys
// is created at another one; if there is none, the server says what to do.
func TestAggregatorWithoutMarksIsRefused(t *testing.T) {
	unmarked := Machine{Plane: func(p aggregator.Plane) aggregator.Plane { return unmarkedPlane{p} }}
	for _, marked := range []bool{true, false} {
		c := newCluster(t, 1)
		addStandbys(t, c, 1)
		defer runSwitchOn(t, c, testLog(t), unmarked)()
		own, err := c.ForStandby(0)
		if err != nil {
			t.Fatal(err)
		}
		var standby Machine
		if !marked {
			standby = unmarked
		}
		defer runSwitchOn(t, own, testLog(t), standby)()
		var logged lines
		ctx, end := context.WithCancel(t.Context())
		defer end()
		ended := make(chan error, 1)
		go func() {
			_, err := RunServer(ctx, Env{Config: c, Log: logged.logger(), Ready: end})
			ended <- err
		}()
		err = <-ended
		const want = "does not tell whose frames a harvest has, so that the job could not leave it: run the daemon of this release there, with plane xdp or model, or leave standbys out"
		if said := "the aggregator at " + c.Switch.Control.String() + " " + want; !strings.Contains(logged.String(), said) {
			t.Errorf("the log does not say %q:\n%s", said, &logged)
		}
		if said := "the aggregator at " + own.Switch.Control.String() + " " + want; marked != errors.Is(err, context.Canceled) ||
			!marked && !strings.Contains(err.Error(), said) {
			t.Errorf("marks at the standby %v: %v", marked, err)
		}
	}
}
