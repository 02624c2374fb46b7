// SPDX-License-Identifier: Apache-2.0

package p4

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/p4/program"
)

// mutant changes every primitive of the program's actions: it returns its replacement, nil for
// nothing.
type mutant func(op string, params []any) (string, []any)

// mutate returns a changed program.
func mutate(t *testing.T, change mutant) *program.Compiled {
	t.Helper()
	p, err := program.Default()
	if err != nil {
		t.Fatal(err)
	}
	var tree map[string]any
	if err := json.Unmarshal(p.Device, &tree); err != nil {
		t.Fatal(err)
	}
	changes := 0
	for _, a := range tree["actions"].([]any) {
		a := a.(map[string]any)
		var kept []any
		for _, do := range a["primitives"].([]any) {
			do := do.(map[string]any)
			was, with := do["op"].(string), do["parameters"].([]any)
			op, params := change(was, with)
			do["op"], do["parameters"] = op, params
			if op != was || !reflect.DeepEqual(params, with) {
				changes++
			}
			if op != "" {
				kept = append(kept, do)
			}
		}
		a["primitives"] = kept
	}
	if changes == 0 {
		t.Fatal("the mutant is the program itself")
	}
	if p.Device, err = json.Marshal(tree); err != nil {
		t.Fatal(err)
	}
	return p
}

// replaced returns params with a text replaced.
func replaced(params []any, from, to string) []any {
	text, _ := json.Marshal(params)
	var changed []any
	_ = json.Unmarshal([]byte(strings.ReplaceAll(string(text), from, to)), &changed)
	return changed
}

func has(params []any, what string) bool {
	text, _ := json.Marshal(params)
	return strings.Contains(string(text), what)
}

// mutants are changes of the program, with the jobs whose frames reveal them.
var mutants = map[string]struct {
	jobs   []aggregator.JobConfig
	change mutant
}{
	"no duplicate is noticed": {jobs, func(op string, params []any) (string, []any) {
		if op == "register_write" && has(params, "aggregate.seen") {
			return "", nil
		}
		return op, params
	}},
	"lane 7 reads the register of lane 8": {jobs, func(op string, params []any) (string, []any) {
		if op == "register_read" && has(params, "aggregate.slots7\"") && !has(params, "value7") {
			return op, replaced(params, "aggregate.slots7\"", "aggregate.slots8\"")
		}
		return op, params
	}},
	"both banks are one": {jobs, func(op string, params []any) (string, []any) {
		if op != "assign" || !has(params[:1], "_job_base") || !has(params[1:], "runtime_data") {
			return op, params
		}
		base := map[string]any{"type": "local", "value": params[1].(map[string]any)["value"]} // a parameter, in an expression
		inBank := map[string]any{"type": "expression", "value": map[string]any{
			"op": "&", "left": base, "right": map[string]any{"type": "hexstr", "value": "0x1fff"},
		}}
		return op, []any{params[0], map[string]any{"type": "expression", "value": inBank}}
	}},
	"ranks have no end": {jobs, func(op string, params []any) (string, []any) {
		if op == "assign" && has(params[:1], "fault") && has(params[1:], `"0x03"`) {
			return "", nil
		}
		return op, params
	}},
	"saturated sums are not cut from below": {jobs, func(op string, params []any) (string, []any) {
		if op == "assign" && has(params[:1], "sum") && has(params[1:], "80000000") {
			return "", nil
		}
		return op, params
	}},
	"answers are not cut": {jobs, func(op string, params []any) (string, []any) {
		if op == "truncate" {
			return "", nil
		}
		return op, params
	}},
	"requests clear nothing": {jobs, func(op string, params []any) (string, []any) {
		if op == "register_write" && has(params, "aggregate.slots0\"") && has(params, `"request"`) {
			return "", nil
		}
		return op, params
	}},
	"the row of the next round is not cleared": {jobs, func(op string, params []any) (string, []any) {
		if op == "register_write" && has(params, "aggregate.slots") && has(params[2:], "hexstr") && !has(params, `"request"`) {
			return "", nil
		}
		return op, params
	}},
	"a round forgets who has contributed": {jobs, func(op string, params []any) (string, []any) {
		if op == "register_write" && has(params, "aggregate.rounds") && !has(params, `"request"`) {
			return "", nil
		}
		return op, params
	}},
	"reports of a scale are not kept": {jobs, func(op string, params []any) (string, []any) {
		if op == "register_write" && has(params, "participation.scales") {
			return "", nil
		}
		return op, params
	}},
	"lane 3 keeps what it held before lut added": {lutJobs, func(op string, params []any) (string, []any) {
		if op == "register_write" && has(params, "aggregate.slots3\"") && has(params[1:2], "_row") {
			return "", nil
		}
		return op, params
	}},
}

// The comparison with the model is only as good as the faults that it notices.
func TestMutantsAreCaught(t *testing.T) {
	if testing.Short() {
		t.Skip("-short")
	}
	t.Parallel()
	catch(t, func(t *testing.T, change mutant) device {
		t.Parallel()
		return openWithLUT(t, mutate(t, change))
	})
}

// catch runs all mutants until each differs from the model. Frames use both banks of the first job,
// and its last harvest contains what the previous ones have left.
func catch(t *testing.T, open func(t *testing.T, change mutant) device) {
	const frames = 800
	for name, m := range mutants {
		t.Run(name, func(t *testing.T) {
			p := pair(t, open(t, m.change), m.jobs)
			err := p.Harvest(m.jobs[0].ID)
			if err == nil {
				_, err = p.Run(1, frames) // with two harvests of each job at the end
			}
			if err == nil {
				err = p.Harvest(m.jobs[0].ID)
			}
			if err == nil {
				t.Errorf("%d frames show no difference from the model", frames)
			} else {
				t.Logf("%.300s", err)
			}
		})
	}
}
