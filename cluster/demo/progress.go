// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"fmt"
	"time"

	"github.com/libra-ina/libra/internal/report"
	"github.com/libra-ina/libra/train"
	"github.com/libra-ina/libra/train/data"
)

// refresh is the time between two updates of the displayed progress.
const refresh = 200 * time.Millisecond

// watchProgress shows the workers' progress until the returned function is called.
func (r *run) watchProgress() (stop func()) {
	p := report.NewProgress(r.options.Stderr, int64(r.rows*r.options.Epochs), r.unit)
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(refresh)
		defer tick.Stop()
		for training := true; training; {
			select {
			case <-tick.C:
			case <-done:
				training = false
			}
			samples, fields := r.progressState()
			p.Update(samples, fields...)
		}
		p.Finish()
	}()
	return func() {
		close(done)
		<-ended
	}
}

// progressState sums the workers' progress.
func (r *run) progressState() (samples int64, fields []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var loss data.Metric
	epoch, known := r.options.Epochs, 0
	for _, w := range r.progress {
		samples += int64(w.Samples)
		epoch = min(epoch, w.Epoch+1)
		for _, l := range w.All() { // at most one
			l.Value += loss.Value
			loss = l
			known++
		}
	}
	fields = append(fields, fmt.Sprintf("epoch %d/%d", epoch, r.options.Epochs))
	if known > 0 {
		fields = append(fields, fmt.Sprintf("%s %.4f", loss.Name, loss.Value/float64(known)))
	}
	return samples, fields
}

// referenceProgress shows the progress of the reference training.
func (o Options) referenceProgress(rows int) (update func(train.Progress), finish func()) {
	p := report.NewProgress(o.Stderr, int64(rows*o.Epochs), "samples of the reference")
	var last time.Time
	var latest train.Progress
	show := func() {
		var fields []string
		for _, l := range latest.All() {
			fields = append(fields, fmt.Sprintf("%s %.4f", l.Name, l.Value))
		}
		p.Update(int64(latest.Samples), fields...)
	}
	update = func(w train.Progress) {
		latest = w
		if now := time.Now(); now.Sub(last) >= refresh {
			last = now
			show()
		}
	}
	return update, func() {
		show()
		p.Finish()
	}
}
