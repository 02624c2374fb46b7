//go:build linux

package bpf

import (
	"testing"

	"github.com/libra-ina/libra/aggregator"
)

func TestAggregateEqualsModel(t *testing.T) {
	p := openPair(t)
	verdicts, err := p.Run(1, *frames)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d frames: %v", *frames, verdicts)
	for a := aggregator.Pass; a <= aggregator.Forward; a++ {
		if verdicts[a] == 0 {
			t.Errorf("no frame with verdict %v among %d", a, *frames)
		}
	}
}
