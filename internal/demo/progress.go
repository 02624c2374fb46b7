package demo

import (
	"fmt"
	"time"

	"github.com/libra-ina/libra/internal/report"
	"github.com/libra-ina/libra/internal/workload"
)

// refresh is the time between two looks at the workers' progress.
const refresh = 200 * time.Millisecond

// watch shows the workers' progress until the returned function is called.
func (r *run) watch() (stop func()) {
	p := report.NewProgress(r.options.Stderr, int64(r.rows*r.options.Epochs), r.unit)
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(refresh)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
			case <-done:
				samples, fields := r.state()
				p.Update(samples, fields...)
				p.Finish()
				return
			}
			samples, fields := r.state()
			p.Update(samples, fields...)
		}
	}()
	return func() {
		close(done)
		<-ended
	}
}

// state sums the workers' progress.
func (r *run) state() (samples int64, fields []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	epoch, loss, known := r.options.Epochs, 0.0, 0
	for _, w := range r.progress {
		samples += int64(w.Samples)
		epoch = min(epoch, w.Epoch+1)
		if w.Samples > 0 {
			loss += w.LogLoss
			known++
		}
	}
	fields = append(fields, fmt.Sprintf("epoch %d/%d", epoch, r.options.Epochs))
	if known > 0 {
		fields = append(fields, fmt.Sprintf("log-loss %.4f", loss/float64(known)))
	}
	return samples, fields
}

// referenceProgress shows how far the reference training is.
func (o Options) referenceProgress(rows int) (update func(workload.Progress), finish func()) {
	p := report.NewProgress(o.Stderr, int64(rows*o.Epochs), "samples of the reference")
	var last time.Time
	var latest workload.Progress
	show := func() { p.Update(int64(latest.Samples), fmt.Sprintf("log-loss %.4f", latest.LogLoss)) }
	update = func(w workload.Progress) {
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
