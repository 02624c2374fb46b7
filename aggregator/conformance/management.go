// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/libra-ina/libra/aggregator"
)

// TestManagement calls all methods of [aggregator.Plane] on a data plane without jobs, especially
// those that must fail, and closes it.
func TestManagement(t *testing.T, p aggregator.Plane) {
	t.Helper()
	want := func(err, target error) {
		t.Helper()
		if !errors.Is(err, target) {
			t.Errorf("error %v, want %v", err, target)
		}
	}
	job := aggregator.JobConfig{ID: 5, Epoch: 2, Slots: 100}

	_, err := p.Swap(5)
	want(err, aggregator.ErrNoJob)
	_, err = p.JobCounters(5)
	want(err, aggregator.ErrNoJob)
	_, err = p.JobTimes(5)
	want(err, aggregator.ErrNoJob)
	_, err = p.SenderCounters(5, 1)
	want(err, aggregator.ErrNoJob)
	want(p.RemoveJob(5), aggregator.ErrNoJob)
	want(p.RemoveJob(65535), aggregator.ErrNoJob)
	want(p.AddSender(5, Sender(0)), aggregator.ErrNoJob)
	want(p.RemoveSender(5, 1), aggregator.ErrNoJob)
	want(p.Clear(&aggregator.Bank{Job: 5}), aggregator.ErrNoJob)

	for _, c := range []struct {
		change func(*aggregator.JobConfig)
		want   error
	}{
		{func(c *aggregator.JobConfig) { c.ID = aggregator.MaxJobs }, aggregator.ErrConfig},
		{func(c *aggregator.JobConfig) { c.Slots = 0 }, aggregator.ErrConfig},
		{func(c *aggregator.JobConfig) { c.Slots = -1 }, aggregator.ErrConfig},
		{func(c *aggregator.JobConfig) { c.Slots = aggregator.MaxSlots + 1 }, aggregator.ErrTooManySlots},
		{func(c *aggregator.JobConfig) { c.Slots = min(p.Pages()*aggregator.PageSlots, aggregator.MaxSlots) + 1 },
			aggregator.ErrTooManySlots},
		{func(c *aggregator.JobConfig) {
			c.Mode, c.Workers, c.Slots = aggregator.Sync, 2, aggregator.PageSlots+1
		}, aggregator.ErrTooManySlots},
		{func(c *aggregator.JobConfig) { c.MaxStripes = 26 }, aggregator.ErrConfig},
		{func(c *aggregator.JobConfig) { c.MaxStripes = -1 }, aggregator.ErrConfig},
		{func(c *aggregator.JobConfig) { c.Exp = -101 }, aggregator.ErrConfig},
		{func(c *aggregator.JobConfig) { c.Exp = 61 }, aggregator.ErrConfig},
		{func(c *aggregator.JobConfig) { c.Mode = 200 }, aggregator.ErrUnsupported},
		{func(c *aggregator.JobConfig) { c.Arithmetic = 200 }, aggregator.ErrUnsupported},
		{func(c *aggregator.JobConfig) { c.Layouts = 4 }, aggregator.ErrUnsupported},
		{func(c *aggregator.JobConfig) { c.Workers = 2 }, aggregator.ErrConfig},
		{func(c *aggregator.JobConfig) { c.Mode = aggregator.Sync }, aggregator.ErrConfig},
		{func(c *aggregator.JobConfig) {
			c.Mode, c.Workers = aggregator.Sync, aggregator.MaxWorkers+1
		}, aggregator.ErrConfig},
		{func(c *aggregator.JobConfig) { c.Arithmetic, c.Workers = aggregator.Fixed, -1 }, aggregator.ErrConfig},
		{func(c *aggregator.JobConfig) { c.Arithmetic, c.Exp = aggregator.LUT, -20 }, aggregator.ErrConfig},
		{func(c *aggregator.JobConfig) {
			c.Mode, c.Workers, c.Layouts = aggregator.Sync, 2, aggregator.Dense
		}, aggregator.ErrUnsupported},
	} {
		bad := job
		c.change(&bad)
		want(p.AddJob(bad), c.want)
	}

	want(p.AddJob(job), nil)
	want(p.AddJob(job), aggregator.ErrJobExists)
	want(p.AddSender(5, Sender(0)), nil)
	want(p.AddSender(5, Sender(0)), aggregator.ErrSenderExists)
	if p.AddSender(5, aggregator.SenderConfig{ID: 9}) == nil {
		t.Error("a sender without an address was admitted")
	}
	mapped := Sender(1)
	mapped.Epoch = 40000 // not the job's
	mapped.IP = netip.AddrFrom16(mapped.IP.As16())
	want(p.AddSender(5, mapped), nil)
	want(p.RemoveSender(5, 4242), aggregator.ErrNoSender)
	want(p.RemoveSender(5, mapped.ID), nil)
	_, err = p.SenderCounters(5, mapped.ID)
	want(err, aggregator.ErrNoSender)

	first, err := p.Swap(5)
	want(err, nil)
	if len(first.Slots) != job.Slots || first.Job != 5 || first.Epoch != 2 {
		t.Errorf("bank of job %d, epoch %d has %d slots", first.Job, first.Epoch, len(first.Slots))
	}
	_, err = p.Swap(5)
	want(err, aggregator.ErrBankNotCleared)
	want(p.Clear(&aggregator.Bank{Job: 5}), aggregator.ErrBankNotFrozen)
	want(p.Clear(first), nil)
	want(p.Clear(first), aggregator.ErrBankNotFrozen)
	_, err = p.Swap(5)
	want(err, nil)
	want(p.RemoveJob(5), nil)
	want(p.AddJob(job), nil)
	_, err = p.SenderCounters(5, Sender(0).ID)
	want(err, aggregator.ErrNoSender)

	want(p.Close(), nil)
	want(p.Close(), nil)
	want(p.AddJob(job), aggregator.ErrClosed)
	want(p.RemoveJob(5), aggregator.ErrClosed)
	want(p.AddSender(5, Sender(0)), aggregator.ErrClosed)
	_, err = p.Swap(5)
	want(err, aggregator.ErrClosed)
	_, err = p.Counters()
	want(err, aggregator.ErrClosed)
}

// TestPlaces checks, on a data plane without jobs that has rounds, that such a job
// admits its number of workers and no more, and has no harvest.
func TestPlaces(t *testing.T, p aggregator.Plane) {
	t.Helper()
	want := func(err, target error) {
		t.Helper()
		if !errors.Is(err, target) {
			t.Errorf("error %v, want %v", err, target)
		}
	}
	for i, job := range []aggregator.JobConfig{
		{ID: 6, Mode: aggregator.Sync, Workers: 2, Slots: 30},
		{ID: 7, Mode: aggregator.Combine, Arithmetic: aggregator.Fixed, Workers: 2, Slots: 30},
	} {
		for range 2 { // RemoveJob frees the places
			want(p.AddJob(job), nil)
			stranger := Sender(0)
			stranger.Epoch = 1
			want(p.AddSender(job.ID, stranger), aggregator.ErrConfig)
			want(p.AddSender(job.ID, Sender(0)), nil)
			want(p.AddSender(job.ID, Sender(0)), aggregator.ErrSenderExists)
			want(p.AddSender(job.ID, Sender(1)), nil)
			want(p.AddSender(job.ID, Sender(1)), aggregator.ErrSenderExists)
			want(p.AddSender(job.ID, Sender(2)), aggregator.ErrTooManySenders)
			want(p.RemoveSender(job.ID, Sender(0).ID), nil)
			want(p.AddSender(job.ID, Sender(0)), aggregator.ErrTooManySenders)
			_, err := p.Swap(job.ID)
			if i == 0 {
				want(err, aggregator.ErrMode)
				want(p.Clear(&aggregator.Bank{Job: job.ID}), aggregator.ErrMode)
			} else {
				want(err, nil)
			}
			want(p.RemoveJob(job.ID), nil)
		}
	}
}
