package engine

// target is what PeerLibra has to reach against a peer, as a ratio of medians.
type target struct {
	test  Test
	peer  string
	sizes []int // nil: every size
	pps   float64
	p50   float64
	p99   float64
}

var targets = []target{
	{test: Transmit, peer: PeerLibxdp, sizes: []int{190, 1414}, pps: 0.97},
	{test: Receive, peer: PeerLibxdp, sizes: []int{190, 1414}, pps: 0.97},
	{test: Echo, peer: PeerLibxdp, sizes: []int{190, 1414}, pps: 0.97},
	{test: Transmit, peer: PeerAsavie, sizes: []int{190, 1414}, pps: 1.15},
	{test: Echo, peer: PeerAsavie, sizes: []int{190, 1414}, pps: 1.2},
	{test: Transmit, peer: PeerUDP, sizes: []int{190}, pps: 6},
	{test: Echo, peer: PeerUDP, sizes: []int{190}, pps: 5},
	{test: Transmit, peer: PeerDPDKAFXDP, sizes: []int{190, 1414}, pps: 1},
	{test: Receive, peer: PeerDPDKAFXDP, sizes: []int{190, 1414}, pps: 1},
	{test: Echo, peer: PeerDPDKAFXDP, sizes: []int{190, 1414}, pps: 1},
	{test: RequestResponse, peer: PeerUDP, p50: 0.7, p99: 0.7},
	{test: Push, peer: PeerBare, pps: 0.85},
	{test: Push, peer: PeerEcho, pps: 0.85},
}

// judge compares the ratios with the targets that concern them.
func judge(ratios []Ratio) []Target {
	judged := []Target{}
	for _, t := range targets {
		for _, r := range ratios {
			if r.Test != t.test || r.Peer != t.peer || !t.applies(r.Size) {
				continue
			}
			verdict := Target{Test: r.Test, Size: r.Size, Peer: r.Peer}
			if t.pps > 0 {
				verdict.Figure, verdict.Want, verdict.Got = "pps", t.pps, r.OfMedians
				verdict.Met = verdict.Got >= verdict.Want
				judged = append(judged, verdict)
			}
			for _, l := range []struct {
				figure string
				want   float64
				got    *float64
			}{{"p50", t.p50, r.P50}, {"p99", t.p99, r.P99}} {
				if l.want > 0 && l.got != nil {
					verdict.Figure, verdict.Want, verdict.Got = l.figure, l.want, *l.got
					verdict.Met = verdict.Got <= verdict.Want
					judged = append(judged, verdict)
				}
			}
		}
	}
	return judged
}

func (t target) applies(size int) bool {
	if t.sizes == nil {
		return true
	}
	for _, s := range t.sizes {
		if s == size {
			return true
		}
	}
	return false
}
