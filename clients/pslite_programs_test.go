// SPDX-License-Identifier: Apache-2.0

//go:build linux

package clients_test

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/libra-ina/libra/packer"
)

// psLiteBuilt is set by scripts/pslite.sh: the folder with the libraries and programs that it has built.
const psLiteBuilt = "LIBRA_PSLITE"

var psLiteRuns = flag.Int("pslite-runs", 1, "how often each program of ps-lite runs")

// psLiteJob is a run of one program of ps-lite as all nodes of a job.
type psLiteJob struct {
	program          string
	servers, workers int
	oneWorker        bool // all workers are customers of one process, and arguments name the roles
	env              []string
}

// run starts all processes, and fails the test unless each exits with 0.
func (j psLiteJob) run(t *testing.T, built string) {
	t.Helper()
	port := freePort(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // they take less than a second
	defer cancel()
	var wg sync.WaitGroup
	start := func(role string, number int) {
		args := []string{}
		if j.oneWorker {
			args = append(args, role)
		}
		cmd := exec.CommandContext(ctx, filepath.Join(built, j.program), args...)
		cmd.Env = append(append(os.Environ(), "DMLC_PS_ROOT_URI=127.0.0.1", fmt.Sprintf("DMLC_PS_ROOT_PORT=%v", port),
			"DMLC_NODE_HOST=127.0.0.1", "DMLC_ROLE="+role, fmt.Sprintf("DMLC_NUM_SERVER=%d", j.servers),
			fmt.Sprintf("DMLC_NUM_WORKER=%d", j.workers)), j.env...)
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		wg.Go(func() {
			if err := cmd.Run(); err != nil {
				t.Errorf("%s as %s %d: %v\n%s", j.program, role, number, err, &out)
				cancel()
			}
		})
	}
	start("scheduler", 0)
	for i := range j.servers {
		start("server", i)
	}
	for i := range j.workers {
		if i == 0 || !j.oneWorker {
			start("worker", i)
		}
	}
	wg.Wait()
}

// psLiteHotSet has half of the keys of test_kv_app and of test_kv_app_multi_workers.
func psLiteHotSet(t *testing.T) *packer.HotSet {
	const num = 10000
	var keys []uint64
	for i := uint64(0); i < num; i += 2 {
		keys = append(keys, math.MaxUint64/num*i, math.MaxUint64/num*i+1)
	}
	hot, err := packer.NewHotSet(1, keys, nil, packer.Meta{})
	if err != nil {
		t.Fatal(err)
	}
	return hot
}

// pushesOf ends the agent, and returns how many pushes of its clients are in its log, which leaves out some clients if
// there are many.
func pushesOf(b *rangeBed) (n int) {
	_ = b.agents[0].Process.Kill()
	_ = b.agents[0].Wait()
	for _, m := range regexp.MustCompile(` pushes=(\d+) `).FindAllStringSubmatch(b.logs[b.agents[0]].String(), -1) {
		k, _ := strconv.Atoi(m[1])
		n += k
	}
	return n
}

// ps-lite's own test programs over the van, on one host: without a hot set, and with half of the keys hot. The hot pairs
// reach the agent.
func TestPSLitePrograms(t *testing.T) {
	built := os.Getenv(psLiteBuilt)
	if built == "" {
		t.Log("the van is tested without ps-lite; make pslite PSLITE=DIR tests it with a tree of ps-lite")
		return
	}
	shared := []string{"DMLC_PS_VAN_TYPE=libra", "LD_PRELOAD=" + filepath.Join(built, "libra_van.so")}
	for _, p := range []psLiteJob{
		{program: "connection_test", servers: 2, workers: 2, env: shared},
		{program: "simple_app_test", servers: 2, workers: 2, env: shared},
		{program: "kv_app_test", servers: 2, workers: 2, env: shared},
		{program: "kv_app_multi_workers_test", servers: 2, workers: 2, oneWorker: true, env: shared},
		{program: "kv_app_wrapped_test", servers: 2, workers: 2, env: shared[:1]},
	} {
		name := strings.TrimSuffix(p.program, "_test")
		t.Run(name+"/cold", func(t *testing.T) {
			for range *psLiteRuns {
				p.run(t, built)
			}
		})
		t.Run(name+"/hot", func(t *testing.T) {
			b := &rangeBed{t: t, agents: make([]*exec.Cmd, 1), hot: psLiteHotSet(t), clean: true}
			b.startUDP(2)
			p.env = append(slices.Clone(p.env), "LIBRA_AGENT="+b.socket(0), "LIBRA_HOT_SET="+b.path("hot.libra"))
			for range *psLiteRuns {
				p.run(t, built)
			}
			if pushes := pushesOf(b); strings.HasPrefix(name, "kv_app") && pushes < 200 { // two workers, two servers, 50 times
				t.Errorf("the agent had %d pushes", pushes)
			}
		})
	}
}
