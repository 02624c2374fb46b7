// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"errors"
	"strings"
	"testing"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/wire"
)

// TestJobsThatAWorkerCannotServe configures workers for jobs with rounds, negotiated scales and
// stripes that do not match; the error names them.
func TestJobsThatAWorkerCannotServe(t *testing.T) {
	hot := testHotSet(t)
	network := newMemNet()
	l := network.open("10.0.0.1:1")
	server, agg := network.open("10.0.0.2:1").Local(), network.open("10.0.0.3:1").Local()
	for name, c := range map[string]struct {
		change func(*WorkerConfig)
		refuse string // part of the error; empty: accepted
	}{
		"combine":            {func(*WorkerConfig) {}, ""},
		"rounds":             {func(c *WorkerConfig) { c.Mode, c.Workers = aggregator.Sync, 2 }, ""},
		"rounds, no hot set": {func(c *WorkerConfig) { c.Mode, c.Workers, c.HotSet, c.Dim = aggregator.Sync, 2, nil, 1 }, "rounds of 2 workers without a hot set"},
		"rounds, dense":      {func(c *WorkerConfig) { c.Mode, c.Workers, c.Layout = aggregator.Sync, 2, packer.Dense }, "dense frames in sync mode"},
		"rounds, no workers": {func(c *WorkerConfig) { c.Mode = aggregator.Sync }, "sync mode needs the number of workers"},
		"scale": {func(c *WorkerConfig) {
			c.Mode, c.Arithmetic, c.Workers, c.Negotiate = aggregator.Sync, aggregator.Fixed, 2, true
		}, ""},
		"scale in combine":    {func(c *WorkerConfig) { c.Arithmetic, c.Workers, c.Negotiate = aggregator.Fixed, 2, true }, "Negotiate with fixed arithmetic in combine mode"},
		"scale of exact sums": {func(c *WorkerConfig) { c.Mode, c.Workers, c.Negotiate = aggregator.Sync, 2, true }, "Negotiate with exact arithmetic in sync mode"},
		"ten stripes":         {func(c *WorkerConfig) { c.Stripes = wire.DefaultStripes }, ""},
		"25 stripes": {func(c *WorkerConfig) { c.Stripes = wire.MaxStripes }, "25 stripes do not fit a payload of 1472 bytes, the most that this link carries: " +
			"give the interface an MTU of 3440 or more, or the aggregator fewer stripes in a frame (switch.stripes: 10)"},
		"25 stripes, jumbo": {func(c *WorkerConfig) { c.Stripes, c.Link = wire.MaxStripes, shortLink{l, wire.MaxPayload} }, ""},
		"short link":        {func(c *WorkerConfig) { c.Stripes, c.Link = 10, shortLink{l, wire.HotLen(10) - 1} }, "10 stripes do not fit a payload of 1371 bytes"},
		"link long enough":  {func(c *WorkerConfig) { c.Stripes, c.Link = 10, shortLink{l, wire.HotLen(10)} }, ""},
	} {
		cfg := WorkerConfig{Link: l, HotSet: hot, Server: server, Aggregator: agg}
		c.change(&cfg)
		w, err := NewWorker(t.Context(), cfg)
		if c.refuse != "" {
			if !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), c.refuse) {
				t.Errorf("%s: %v, want ErrConfig with %q", name, err, c.refuse)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if err := w.Close(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		l = network.open("10.0.0.1:1") // Close closed it
	}
}

// shortLink accepts payloads of at most payload bytes.
type shortLink struct {
	link.Link
	payload int
}

func (l shortLink) Limits() link.Limits {
	limits := l.Link.Limits()
	limits.MaxPayload = l.payload
	return limits
}

func TestPushErrorSaysHowFar(t *testing.T) {
	e := &PushError{Sent: packer.Sent{HotPairs: 220, ColdRows: 7}, Acked: 1, Refused: 2, Unknown: 3, Unacked: 4, Err: ErrClosed}
	want := "transport: push failed after a part of the batch was sent (220 hot pairs, 7 cold rows in 10 frames: 1 acknowledged, 2 refused, 3 unknown, 4 unanswered): " + ErrClosed.Error()
	if e.Error() != want || !errors.Is(e, ErrClosed) {
		t.Errorf("%q, want %q", e, want)
	}
	e.Complete = true
	if want = strings.Replace(want, "a part of the batch", "the whole batch", 1); e.Error() != want {
		t.Errorf("%q, want %q", e, want)
	}
}
