package node

import "testing"

// A server that continues from a checkpoint applies the harvests of its new job,
// whose numbers begin at 1 again.
func TestResumedServerAppliesHarvests(t *testing.T) {
	c := newCluster(t, 2)
	startSwitch(t, c)
	first := mustTrain(t, c)
	store := reference(t, c, nil)
	if first.server.WeightsSHA256 != hash(store) {
		t.Fatalf("weights %s, the reference's %s", first.server.WeightsSHA256, hash(store))
	}
	second := mustTrain(t, c)
	if second.server.HotPairs != first.server.HotPairs || first.server.HotPairs == 0 {
		t.Errorf("%d hot pairs are applied in the first run, %d in the second", first.server.HotPairs, second.server.HotPairs)
	}
	if want := hash(reference(t, c, store)); second.server.WeightsSHA256 != want {
		t.Errorf("weights %s, the reference's %s", second.server.WeightsSHA256, want)
	}
}
