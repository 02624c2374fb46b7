// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/libra-ina/libra/bench/pslite"
)

// The programs stand for those of ps-lite, without which they print what 'make pslite' has them
// measure: figures that depend on what they run over. That is told by the van's variables alone.
const (
	psLiteRates = `#!/bin/sh -e
case $DMLC_PS_VAN_TYPE in
libra) test -S "$LIBRA_AGENT" -a -s "$LIBRA_HOT_SET"; us=50 rate=5e6 ms=4 ;;
zmq) test -z "$LIBRA_HOT_SET$LD_PRELOAD"; us=25 rate=4e6 ms=1 ;;
esac
test $DMLC_ROLE = worker || exit 0
case $1 in
small) test $2 = 7; echo median_us $us ;;
batches) test $2-$3 = 9-2; echo pairs_per_s $rate; test $DMLC_NUM_WORKER = 2 || echo pull_median_ms $ms ;;
esac
`
	psLiteBenchmark = `#!/bin/sh -e
case $DMLC_PS_VAN_TYPE in libra) ms=500 ;; zmq) ms=250 ;; esac
test $DMLC_ROLE != worker || echo "Push average time cost: ${ms}ms, Pull average time cost: ${ms}ms" >&2
`
)

// All programs run over both vans, with their hot sets, and the report has what they print and its
// ratios.
func TestBenchPSLite(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	err := errors.Join(os.WriteFile(filepath.Join(dir, "rates"), []byte(psLiteRates), 0o755),
		os.WriteFile(filepath.Join(dir, "kv_app_benchmark_test"), []byte(psLiteBenchmark), 0o755),
		os.WriteFile(filepath.Join(dir, "libra_van.so"), nil, 0o644)) // the loader warns, and goes on
	if err != nil {
		t.Fatal(err)
	}
	stdout, stderr, code := output(t, "bench", "pslite", "--pslite", dir, "--backend", "udp", "--workers", "2", "--pushes", "9", "--small", "7",
		"--rounds", "2", "--targets", "--json")
	if code != 0 {
		t.Fatalf("code %d: %s", code, stderr)
	}
	conforms(t, "libra bench pslite", stdout)
	var r pslite.Report
	if err := json.Unmarshal([]byte(stdout), &r); err != nil {
		t.Fatal(err)
	}
	want := map[string]pslite.Sample{
		pslite.Cold: {Push: 2, Pull: 2}, pslite.Small: {Push: 2}, pslite.Batches: {Rate: 1.25}, pslite.Pulls: {Rate: 1.25, Pull: 4},
	}
	for _, res := range r.Results {
		if res.Van == pslite.Libra && res.Ratios != want[res.Measure] || len(res.Samples) != 2 {
			t.Errorf("%+v, want the ratios %+v", res, want[res.Measure])
		}
	}
	if len(r.Results) != 2*len(want) || r.Targets != nil {
		t.Errorf("%s", stdout)
	}
}
