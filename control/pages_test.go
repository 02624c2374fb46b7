// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/wire"
)

// onePage is a data plane without pages, as a P4 switch is.
type onePage struct{ aggregator.Plane }

func (onePage) Pages() int { return 1 }

func TestPlaneWithoutPages(t *testing.T) {
	l := startAggregator(t, func(c *AggregatorConfig) { c.Plane = onePage{c.Plane} })
	s := spec()
	s.Slots = aggregator.PageSlots + 1
	_, err := l.client.CreateJob(t.Context(), s)
	want := "65537, at most 65536 on this data plane: use fewer hot rows, or an aggregator in XDP"
	if status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), want) {
		t.Errorf("error %v, want %q", err, want)
	}
	s.Slots--
	l.create(t, s)
}

// A job of several pages counts against the aggregator's slots.
func TestPagesCountAgainstSlots(t *testing.T) {
	l := startAggregator(t, func(c *AggregatorConfig) { c.Slots = 3 * aggregator.PageSlots })
	s := spec()
	s.Slots = 3*aggregator.PageSlots + 1
	_, err := l.client.CreateJob(t.Context(), s)
	want := "job 5: slots: 196609 are wanted, but 0 of this aggregator's 196608 are taken, by 0 jobs: give the aggregator more (slots of its entry in the cluster file)"
	if status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), want) {
		t.Errorf("error %v, want %q", err, want)
	}
	s.Slots--
	l.create(t, s)
}

// A worker of a version without pages is refused before its first frame, when it asks
// and when it joins, by jobs that have pages only.
func TestWorkerWithoutPages(t *testing.T) {
	for _, c := range []struct {
		slots, known uint32
		refused      string
	}{
		{aggregator.PageSlots, 0, ""},
		{aggregator.PageSlots + 1, 0, "worker 1's version of libra can name 65536 hot scalars, and job 5 has 65537: run the same version on all hosts"},
		{aggregator.PageSlots + 1, 1, "worker 1's version of libra can name 65536 hot scalars, and job 5 has 65537"},
		{2 * aggregator.PageSlots, 2, ""},
		{2*aggregator.PageSlots + 1, 2, "worker 1's version of libra can name 131072 hot scalars, and job 5 has 131073"},
		{2*aggregator.PageSlots + 1, wire.MaxPages, ""},
	} {
		t.Run(fmt.Sprint(c.slots, " slots, ", c.known, " known"), func(t *testing.T) {
			l := startAggregator(t)
			s, req := spec(), joinRequest()
			s.Slots, req.Pages = c.slots, c.known
			l.create(t, s)
			asked, askedErr := l.client.Check(t.Context(), req)
			_, joined, err := joinAs(t.Context(), l.client, req)
			if c.refused == "" {
				want := (c.slots + aggregator.PageSlots - 1) / aggregator.PageSlots
				if askedErr != nil || err != nil || asked.Pages != want || joined.Pages != want {
					t.Errorf("%v, %v; %v, %v; want %d pages", asked, askedErr, joined, err, want)
				}
				return
			}
			for _, err := range []error{askedErr, err} {
				if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), c.refused) {
					t.Errorf("error %v, want %q", err, c.refused)
				}
			}
			if n := l.stats(t).Jobs[0].Senders; n != 0 {
				t.Errorf("%d senders are admitted", n)
			}
		})
	}
}

// A harvest has the sums of all pages.
func TestHarvestOfPages(t *testing.T) {
	l := startAggregator(t)
	s := spec()
	s.Slots = 3*aggregator.PageSlots + 5
	job := l.create(t, s)
	req := joinRequest()
	req.Pages = wire.MaxPages
	_, a, err := joinAs(t.Context(), l.client, req)
	if err != nil {
		t.Fatal(err)
	}
	ranks := []uint32{0, aggregator.PageSlots - 1, aggregator.PageSlots, 2*aggregator.PageSlots + 77, 3*aggregator.PageSlots + 4}
	for i, rank := range ranks {
		payload, reply := make([]byte, wire.HotLen(1)), make([]byte, aggregator.MaxReplyPayload)
		wire.Header{Type: wire.TypeHot, Flags: wire.FlagDense, Job: 5, Sender: 1, Epoch: uint16(a.Epoch), Seq: uint32(i + 1)}.Put(payload)
		stripe := wire.StripeAt(payload, 0)
		stripe.SetPage(int(rank/aggregator.PageSlots), 1)
		stripe.SetSlot(0, uint16(rank%aggregator.PageSlots))
		stripe.SetValue(0, float32(i+1))
		l.acknowledged(t, payload, reply)
	}
	got := newSums()
	h, stop := harvester(t, job, got.apply)
	if err := h.Now(t.Context()); err != nil {
		t.Fatal(err)
	}
	for i, rank := range ranks {
		if want := units(t, float32(i+1)); got.rank(rank) != want {
			t.Errorf("sum of rank %d is %d, want %d", rank, got.rank(rank), want)
		}
	}
	if err := stop(); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
