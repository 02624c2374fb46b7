// SPDX-License-Identifier: Apache-2.0

package scripts

import (
	"flag"
	"os"
	"os/exec"
	"regexp"
	"testing"
)

var assembleAll = flag.Bool("assemble-all", false, "look for fused products and sums in endpoints and clusters, too: 'make cross' does")

// What gradients, sums, weights and plans go through is computed with the same roundings on all
// architectures: the compiler makes no fused multiply-add of it where the processor has them.
func TestNoFusedMultiplyAdd(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("compiles some packages for another architecture")
	}
	packages := []string{"wire", "codec", "packer", "aggregator", "ps", "sched", "internal/num/fixedpoint", "internal/num/scaled", "internal/num/portable", "train", "train/data", "train/weights", "train/glm"}
	if *assembleAll { // gRPC and much else must be compiled first
		packages = append(packages, "transport", "local", "cluster/node", "simulation", "simulation/world")
	}
	arguments := []string{"build", "-gcflags=-S"}
	for _, p := range packages {
		arguments = append(arguments, "../"+p)
	}
	cmd := exec.Command("go", arguments...)
	cmd.Env = append(os.Environ(), "GOARCH=arm64", "CGO_ENABLED=0")
	assembly, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %v", cmd, err)
	}
	if !regexp.MustCompile(`\tFMUL[SD]\t`).Match(assembly) {
		t.Fatal("the compiler has printed no product")
	}
	for _, line := range regexp.MustCompile(`\(([^()\n]+:\d+)\)\tFN?M(ADD|SUB)[SD]\t.*`).FindAllSubmatch(assembly, -1) {
		t.Errorf("%s: a product and a sum are rounded once on arm64, twice elsewhere; convert the product: float32(x * y)", line[1])
	}
}
