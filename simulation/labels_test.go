// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"
)

// dies is the fault by which a test's process ends.
const dies = "LIBRA_TEST_DIES_OF"

// Whatever ends the program inside a life, its output names the command to run that life again.
func TestLifeIsNamed(t *testing.T) {
	for _, f := range []fault{panics, panicsLate, locksItselfOut} {
		t.Run(string(f), func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestDies$")
			cmd.Env = append(os.Environ(), dies+"="+string(f))
			out, err := cmd.CombinedOutput()
			if err == nil {
				t.Fatalf("it lives on:\n%s", out)
			}
			text := string(out[:min(len(out), 4000)])
			seeds := regexp.MustCompile(`seed=(\d+)`).FindAllSubmatch(out, -1)
			if len(seeds) == 0 {
				t.Fatal(text)
			}
			again := fmt.Sprintf("libra simulate --seed %s --lives workers --only loss,crash", seeds[len(seeds)-1][1])
			if f == locksItselfOut {
				if want := "live it again: " + again + "\n"; !strings.Contains(text, want) {
					t.Errorf("no %q in\n%s", want, text)
				}
				return
			}
			// The first printed goroutine has ended the program. If a timer has started it, it has
			// no name, but others of its bubble do.
			first := regexp.MustCompile(`(?s)goroutine \d.*?synctest bubble (\d+)`).FindSubmatch(out)
			if first == nil {
				t.Fatalf("no goroutine of a bubble in\n%s", text)
			}
			if want := fmt.Sprintf("synctest bubble %s labels:{%q: %q}", first[1], "again", again); !strings.Contains(string(out), want) {
				t.Errorf("no %q in\n%s", want, text)
			}
		})
	}
}

func TestDies(t *testing.T) {
	f := fault(os.Getenv(dies))
	if f == "" {
		t.Skip("for TestLifeIsNamed")
	}
	wallLimit = time.Second
	for seed := uint64(1); seed < 100; seed++ {
		fmt.Printf("seed=%d\n", seed)
		if _, err := Run(InTest(t), Options{Seed: seed, Kinds: Loss | Crash, fault: f}); err != nil {
			t.Fatal(err)
		}
	}
}

func TestReplay(t *testing.T) {
	for want, o := range map[string]Options{
		"libra simulate --seed 7 --lives clusters":                                                                       {Seed: 7, Kinds: ClusterAll},
		"libra simulate --seed 8 --lives clusters --only none":                                                           {Seed: 8},
		"libra simulate --seed 9 --lives clusters --only loss # cut down to {Without:[3] Workers:1 Halves:0 Once:false}": {Seed: 9, Kinds: Loss, Cut: Cut{Without: []int{3}, Workers: 1}},
	} {
		if got := o.Replay(Clusters); got != want {
			t.Errorf("%q, not %q", got, want)
		}
	}
}
