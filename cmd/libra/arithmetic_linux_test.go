// SPDX-License-Identifier: Apache-2.0

package main

import (
	"math"
	"testing"
)

// The aggregator may add in any arithmetic: the training's result is about the same.
func TestArithmetics(t *testing.T) {
	t.Parallel()
	for _, backend := range []string{"udp", "afxdp"} {
		for _, arithmetic := range []string{"exact", "lut", "fixed"} {
			t.Run(backend+" "+arithmetic, func(t *testing.T) {
				if backend == "afxdp" {
					needRoot(t)
				}
				r := runDemo(t, "--backend", backend, "--arithmetic", arithmetic, "--data", shortFrappe(t, 8000), "--epochs", "2", "--workers", "2", "--sync")
				if r.Arithmetic != arithmetic || r.HotShare < 0.5 || r.FramesSaved <= 0 {
					t.Errorf("got %+v", r)
				}
				if math.Abs(*r.AUC-*r.OneProcess.AUC) > 0.005 || *r.AUC < 0.6 {
					t.Errorf("AUC %.4f, in one process %.4f", *r.AUC, *r.OneProcess.AUC)
				}
				if exact := arithmetic == "exact"; exact != (r.ReferenceSHA256 != "") || exact && r.WeightsSHA256 != r.ReferenceSHA256 {
					t.Errorf("weights %q, reference %q", r.WeightsSHA256, r.ReferenceSHA256)
				}
			})
		}
	}
}
