// SPDX-License-Identifier: Apache-2.0

package glm

import (
	"fmt"
	"slices"

	"github.com/libra-ina/libra/internal/report/chart"
	"github.com/libra-ina/libra/internal/report/experiment"
)

// Charts returns, for each shape, the times of epochs by method and mini-batch (Fig. 9 of the P4SGD
// paper) and the loss by time (Fig. 15); the speed-up of larger mini-batches (Fig. 10), the
// computed one of more workers (Fig. 12), the computed epochs by network (Fig. 13), and losses by
// bits (Fig. 14).
func (r *Report) Charts() (charts []chart.Chart) {
	for _, shape := range experiment.Distinct(r.Results, func(res Result) string { return res.Shape }) {
		charts = append(charts, r.chartEpochs(shape), r.chartTimes(shape))
	}
	charts = append(charts, r.chartBatches(), r.chartScale())
	for _, shape := range experiment.Distinct(r.Scaled, func(s Scaled) string { return s.Shape }) {
		charts = append(charts, r.chartNetworks(shape))
	}
	for _, shape := range experiment.Distinct(r.Losses, func(l Losses) string { return l.Shape }) {
		charts = append(charts, r.chartLosses(shape))
	}
	return slices.DeleteFunc(charts, func(c chart.Chart) bool { return len(c.Series) == 0 })
}

func (r *Report) chartEpochs(shape string) chart.Chart {
	c := chart.Chart{
		Name: "glm-epochs-" + shape, Title: "epoch of " + shape + " by mini-batch", Legend: chart.TopRight,
		X: chart.Axis{Label: "rows of a mini-batch", Log: true},
		Y: chart.Axis{Label: "s for an epoch of all rows", Log: true, Room: 2},
	}
	for i, method := range experiment.Distinct(r.Results, func(res Result) string { return res.Method }) {
		c.Series = append(c.Series, chart.Series{Name: method, Colour: i, Points: chart.Points(r.Results,
			func(res Result) bool { return res.Shape == shape && res.Method == method },
			func(res Result) (x, y float64) { return float64(res.Batch), res.Whole })})
	}
	return c
}

func (r *Report) chartTimes(shape string) chart.Chart {
	c := chart.Chart{
		Name: "glm-loss-time-" + shape, Title: fmt.Sprintf("loss of %s by time", shape), Legend: chart.TopRight,
		X: chart.Axis{Label: "s", Log: true}, Y: chart.Axis{Label: "training loss"},
	}
	every := func(Point) bool { return true }
	for i, res := range r.Results {
		if res.Shape == shape && len(res.Curve) > 0 {
			c.Series = append(c.Series, chart.Series{
				Name: fmt.Sprintf("%s, %d", res.Method, res.Batch), Colour: i,
				Points: chart.Points(res.Curve, every, func(p Point) (x, y float64) { return p.Seconds, p.Loss }),
			})
		}
	}
	return c
}

func (r *Report) chartBatches() chart.Chart {
	c := chart.Chart{
		Name: "glm-batches", Title: "speed-up of libra by mini-batch",
		X: chart.Axis{Label: "rows of a mini-batch", Log: true},
		Y: chart.Axis{Label: "time of the smallest divided by the time", Room: 1.35},
	}
	for i, shape := range experiment.Distinct(r.Results, func(res Result) string { return res.Shape }) {
		ours := func(res Result) bool { return res.Shape == shape && res.Method == Libra }
		if first := experiment.Find(r.Results, ours); first != nil {
			c.Series = append(c.Series, chart.Series{Name: shape, Colour: i, Points: chart.Points(r.Results, ours,
				func(res Result) (x, y float64) { return float64(res.Batch), first.Epoch / res.Epoch })})
		}
	}
	return c
}

func (r *Report) chartScale() chart.Chart {
	c := chart.Chart{
		Name: "glm-scale", Title: "computed speed-up by workers", X: chart.Axis{Label: "workers"},
		Y: chart.Axis{Label: "computed: time of one divided by the time", Room: 1.35},
	}
	if len(r.Scaled) == 0 {
		return c
	}
	batch := r.Scaled[0].Batch
	for i, shape := range experiment.Distinct(r.Scaled, func(s Scaled) string { return s.Shape }) {
		c.Series = append(c.Series, chart.Series{
			Name: fmt.Sprintf("%s, mini-batches of %d", shape, batch), Colour: i, Points: chart.Points(r.Scaled,
				func(s Scaled) bool { return s.Shape == shape && s.Batch == batch && s.Network == Libra },
				func(s Scaled) (x, y float64) { return float64(s.Workers), s.Speedup }),
		})
	}
	return c
}

func (r *Report) chartNetworks(shape string) chart.Chart {
	c := chart.Chart{
		Name: "glm-networks-" + shape, Title: "computed epoch of " + shape + " by network", X: chart.Axis{Label: "workers"},
		Y: chart.Axis{Label: "computed: s for an epoch of all rows", Room: 1.5}, Legend: chart.TopRight,
	}
	var own []Scaled
	for _, s := range r.Scaled {
		if s.Shape == shape {
			own = append(own, s)
		}
	}
	network, batch := func(s Scaled) string { return s.Network }, func(s Scaled) string { return fmt.Sprint(s.Batch) }
	chart.AddCurves(&c, own, network, batch, func(s Scaled) (x, y float64) { return float64(s.Workers), s.Whole })
	return c
}

func (r *Report) chartLosses(shape string) chart.Chart {
	c := chart.Chart{
		Name: "glm-losses-" + shape, Title: fmt.Sprintf("loss of %s, mini-batches of %d", shape, lossBatch),
		Legend: chart.TopRight, X: chart.Axis{Label: "epoch"}, Y: chart.Axis{Label: "training loss"},
	}
	for i, l := range r.Losses {
		if l.Shape != shape {
			continue
		}
		s := chart.Series{Name: l.features(), Colour: i}
		for e, loss := range l.Losses {
			s.Points = append(s.Points, chart.Point{X: float64(e + 1), Y: loss})
		}
		c.Series = append(c.Series, s)
	}
	return c
}
