// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"fmt"

	"github.com/libra-ina/libra/internal/report/experiment"
)

// A reading is what the text of §IV-C says of a figure, in GB. Schemes that it does not mention are
// 0.
type reading struct {
	figure  int
	fabric  string
	workers int
	of      map[string]float64
}

// readings has the paper's ATP and ESA beside ours over any shortest path, which is what its text
// says.
var readings = []reading{
	{10, "leaf–spine", 35, map[string]float64{GOAT: 0.06, ESAAny: 5.7, ATPAny: 6.7, Geryon: 8.4}},
	{11, "fat-tree", 40, map[string]float64{GOAT: 9.6, ESAAny: 3.2, ATPAny: 1.9}},
	{12, "leaf–spine", 35, map[string]float64{GOAT: 13.7, ESAAny: 19.8, ATPAny: 20.9, Geryon: 37.1}},
}

// Claim is a figure of the paper that contradicts its settings, or its own figures.
type Claim struct {
	Where string `json:"where"`
	Paper string `json:"paper"` // what it says
	But   string `json:"but"`   // why that cannot be
}

// claims compares the paper's figures with its settings, and with the report where that has them.
func claims(r *Report) []Claim {
	const leafSpineWorkers, fatTreeWorkers, settings = 35, 40, 221
	all := []Claim{
		{
			"Fig. 10, leaf–spine, 35 workers", "Geryon: 8.4 GB at the server",
			fmt.Sprintf("§IV-C sets 221 MB a worker, which is %.2f GB; 8.4 GB are %.0f MB each",
				leafSpineWorkers*settings/1000.0, 8400.0/leafSpineWorkers),
		},
		{
			"Fig. 11, fat-tree, 40 workers", "GOAT: 9.6 GB aggregated in the network",
			fmt.Sprintf("all workers together send %.2f GB of 221 MB each; 9.6 GB are %.0f MB each, of which not one reaches the server",
				fatTreeWorkers*settings/1000.0, 9600.0/fatTreeWorkers),
		},
		{
			"Fig. 10, leaf–spine, 35 workers", "GOAT: 60 MB at the server",
			"each gradient reaches the server once at least, in some sum: 221 MB",
		},
		{
			"Fig. 12, leaf–spine, 35 workers", "Geryon: 37.1 GB times links",
			fmt.Sprintf("no shortest path there has more than 4 links: at most %.1f GB with 221 MB, %.1f with 240",
				4*leafSpineWorkers*settings/1000.0, 4*leafSpineWorkers*240/1000.0),
		},
	}
	for _, model := range experiment.Distinct(r.Points, func(p Point) int { return p.Model }) {
		p := r.find("leaf–spine", model, ByWorkers, leafSpineWorkers, DefaultDeviation, Bound)
		if p.Traffic.Min > 13.7*gb {
			all = append(all, Claim{
				"Fig. 12, leaf–spine, 35 workers", "GOAT: 13.7 GB times links",
				fmt.Sprintf("with %d MB no plan has less than %.1f by Eq. (1): the lower bound is %.1f to %.1f in %d placements",
					model/mb, p.Traffic.Min/gb, p.Traffic.Min/gb, p.Traffic.Max/gb, r.Placements),
			})
		}
	}
	return append(all, Claim{
		"Fig. 6, ResNet-50", "speed-ups of 1.34 and 1.39 over ESA and ATP",
		fmt.Sprintf("by its own times, 802.4, 1208.48 and 1312.6 s, they are %.2f and %.2f", 1208.48/802.4, 1312.6/802.4),
	})
}
