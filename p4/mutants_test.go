// SPDX-License-Identifier: Apache-2.0

package p4

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/aggregator/vectors"
	"github.com/libra-ina/libra/p4/program"
)

// mutant is a change of the program, with the jobs whose frames reveal it.
type mutant struct {
	jobs []aggregator.JobConfig
	// change, or nil, changes every primitive of the program's actions: it returns its replacement,
	// nil for nothing.
	change func(op string, params []any) (string, []any)
	// condition, or nil, changes every condition, which is JSON.
	condition func(expression string) string
	file      string // of vectors, which reveal it where random frames rarely do
}

// mutate returns a changed program.
func mutate(t *testing.T, m mutant) *program.Compiled {
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
	for _, p := range tree["pipelines"].([]any) {
		for _, c := range p.(map[string]any)["conditionals"].([]any) {
			if c := c.(map[string]any); m.condition != nil {
				was, _ := json.Marshal(c["expression"])
				if is := m.condition(string(was)); is != string(was) {
					changes++
					c["expression"] = json.RawMessage(is)
				}
			}
		}
	}
	for _, a := range tree["actions"].([]any) {
		if m.change == nil {
			break
		}
		a := a.(map[string]any)
		var kept []any
		for _, do := range a["primitives"].([]any) {
			do := do.(map[string]any)
			was, with := do["op"].(string), do["parameters"].([]any)
			op, params := m.change(was, with)
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

// entersNumber reports whether a condition is the one under which the number of a frame is entered
// into the duplicate filter.
func entersNumber(expression string) bool {
	return strings.Contains(expression, "_step40") && strings.Contains(expression, "_pair_fault36")
}

var mutants = map[string]mutant{
	"no duplicate is noticed": {jobs, func(op string, params []any) (string, []any) {
		if op == "register_write" && has(params, "aggregate.seen") {
			return "", nil
		}
		return op, params
	}, nil, ""},
	"lane 7 reads the register of lane 8": {jobs, func(op string, params []any) (string, []any) {
		if op == "register_read" && has(params, "aggregate.slots7\"") && !has(params, "value7") {
			return op, replaced(params, "aggregate.slots7\"", "aggregate.slots8\"")
		}
		return op, params
	}, nil, ""},
	"both banks are one": {jobs, func(op string, params []any) (string, []any) {
		if op != "assign" || !has(params[:1], "_job_base") || !has(params[1:], "runtime_data") {
			return op, params
		}
		base := map[string]any{"type": "local", "value": params[1].(map[string]any)["value"]} // a parameter, in an expression
		inBank := map[string]any{"type": "expression", "value": map[string]any{
			"op": "&", "left": base, "right": map[string]any{"type": "hexstr", "value": "0x1fff"},
		}}
		return op, []any{params[0], map[string]any{"type": "expression", "value": inBank}}
	}, nil, ""},
	"ranks have no end": {jobs, func(op string, params []any) (string, []any) {
		if op == "assign" && has(params[:1], "fault") && has(params[1:], `"0x03"`) {
			return "", nil
		}
		return op, params
	}, nil, ""},
	"saturated sums are not cut from below": {jobs, func(op string, params []any) (string, []any) {
		if op == "assign" && has(params[:1], "sum") && has(params[1:], "80000000") {
			return "", nil
		}
		return op, params
	}, nil, ""},
	"answers are not cut": {jobs, func(op string, params []any) (string, []any) {
		if op == "truncate" {
			return "", nil
		}
		return op, params
	}, nil, ""},
	"requests clear nothing": {jobs, func(op string, params []any) (string, []any) {
		if op == "register_write" && has(params, "aggregate.slots0\"") && has(params, `"request"`) {
			return "", nil
		}
		return op, params
	}, nil, ""},
	"the row of the next round is not cleared": {jobs, func(op string, params []any) (string, []any) {
		if op == "register_write" && has(params, "aggregate.slots") && has(params[2:], "hexstr") && !has(params, `"request"`) {
			return "", nil
		}
		return op, params
	}, nil, ""},
	"a round forgets who has contributed": {jobs, func(op string, params []any) (string, []any) {
		if op == "register_write" && has(params, "aggregate.rounds") && !has(params, `"request"`) {
			return "", nil
		}
		return op, params
	}, nil, ""},
	"reports of a scale are not kept": {jobs, func(op string, params []any) (string, []any) {
		if op == "register_write" && has(params, "participation.scales") {
			return "", nil
		}
		return op, params
	}, nil, ""},
	"a copy of a refused frame is acknowledged": {jobs, func(op string, params []any) (string, []any) {
		if op == "assign" && has(params[:1], "_code30") && has(params[1:], "aggregate_before") {
			return "", nil
		}
		return op, params
	}, nil, ""},
	"a copy of a refused frame blames lane 0": {jobs, func(op string, params []any) (string, []any) {
		if op == "assign" && has(params[:1], "_lane31") && has(params[1:], "aggregate_before") {
			return "", nil
		}
		return op, params
	}, nil, "refused-lanes"},
	"the number of a sum that was refused stays fresh": {jobs, nil, func(expression string) string {
		if !entersNumber(expression) {
			return expression
		}
		return `{"type":"expression","value":{"left":{"type":"field","value":["scalars","aggregate_applied"]},"op":"==","right":{"type":"hexstr","value":"0x01"}}}`
	}, ""},
	"the number of a second contribution stays fresh": {jobs, nil, func(expression string) string {
		if !entersNumber(expression) {
			return expression
		}
		return `{"type":"expression","value":{"left":` + expression + `,"op":"and","right":{"type":"expression","value":{` +
			`"left":{"type":"field","value":["scalars","state_t._code30"]},"op":"!=","right":{"type":"hexstr","value":"0x0d"}}}}}`
	}, "sync-lut-lanes"},
	"the number of a second contribution with a bad pair stays fresh": {jobs, nil, func(expression string) string {
		if !entersNumber(expression) {
			return expression
		}
		return strings.Replace(expression, `"0x0d"`, `"0x0f"`, 1)
	}, "sync-exact-lanes"},
	"the number of a frame with a bad pair is entered": {jobs, nil, func(expression string) string {
		if !entersNumber(expression) {
			return expression
		}
		return `{"type":"expression","value":{"left":{"type":"field","value":["scalars","state_t._fresh24"]},"op":"==","right":{"type":"hexstr","value":"0x01"}}}`
	}, ""},
	"lane 3 keeps what it held before lut added": {lutJobs, func(op string, params []any) (string, []any) {
		if op == "register_write" && has(params, "aggregate.slots3\"") && has(params[1:2], "_row") {
			return "", nil
		}
		return op, params
	}, nil, ""},
}

// The comparison with the model is only as good as the faults that it notices.
func TestMutantsAreCaught(t *testing.T) {
	if testing.Short() {
		t.Skip("-short")
	}
	t.Parallel()
	catch(t, func(t *testing.T, m mutant) device {
		t.Parallel()
		return openWithLUT(t, mutate(t, m))
	})
}

// catch runs all mutants until each differs from the model. Frames use both banks of the first job,
// and its last harvest contains what the previous ones have left.
func catch(t *testing.T, open func(t *testing.T, m mutant) device) {
	const frames = 800
	for name, m := range mutants {
		t.Run(name, func(t *testing.T) {
			d := open(t, m)
			if m.file != "" {
				if err := vectorsNamed(t, m.file).Replay(d); err == nil {
					t.Errorf("the vectors %s show no difference from the model", m.file)
				}
				return
			}
			p := pair(t, d, m.jobs)
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

// vectorsNamed returns a file of vectors.
func vectorsNamed(t *testing.T, name string) *vectors.File {
	t.Helper()
	files, err := vectors.Load("../aggregator/testdata/vectors")
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(files, func(f *vectors.File) bool { return f.Name == name })
	if i < 0 {
		t.Fatalf("no vectors %s", name)
	}
	return files[i]
}
