package push

import "fmt"

// judge compares the results with what PeerLibra has to reach.
func (r *Report) judge() {
	want := func(what string, want, got float64) {
		r.Targets = append(r.Targets, Target{What: what, Want: want, Got: got, Met: got >= want})
	}
	for _, t := range []struct {
		batch int
		peer  string
		rate  float64
	}{{4096, PeerHash, 4}, {4096, PeerTable, 1.5}, {32, PeerHash, 4}} {
		const workers = 4
		ours, peer := r.find(workers, t.batch, PeerLibra), r.find(workers, t.batch, t.peer)
		if ours == nil || peer == nil {
			continue
		}
		where := fmt.Sprintf("%d workers, batches of %d: %%s %s", workers, t.batch, t.peer)
		want(fmt.Sprintf(where, "rate of libra divided by that of"), t.rate, peer.Ratio)
		if t.batch == 4096 {
			want(fmt.Sprintf(where, "CPU time per pair, libra's divided into that of"), 1, quotient(peer.NsTotal, ours.NsTotal))
		}
	}
	if four, eight := r.find(4, 4096, PeerLibra), r.find(8, 4096, PeerLibra); four != nil && eight != nil {
		want("batches of 4096: rate of 8 workers divided by that of 4", 1, quotient(eight.PairsPerSecond, four.PairsPerSecond))
	}
}
