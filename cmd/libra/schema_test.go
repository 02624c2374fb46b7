// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/invopop/jsonschema"
	validator "github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/libra-ina/libra/bench/aggregator"
	"github.com/libra-ina/libra/bench/allreduce"
	"github.com/libra-ina/libra/bench/chaos"
	"github.com/libra-ina/libra/bench/codec"
	"github.com/libra-ina/libra/bench/engine"
	"github.com/libra-ina/libra/bench/glm"
	"github.com/libra-ina/libra/bench/latency"
	"github.com/libra-ina/libra/bench/pslite"
	"github.com/libra-ina/libra/bench/push"
	"github.com/libra-ina/libra/bench/ring"
	"github.com/libra-ina/libra/bench/soak"
	"github.com/libra-ina/libra/bench/tenants"
	"github.com/libra-ina/libra/cluster/demo"
	"github.com/libra-ina/libra/cluster/plan"
	"github.com/libra-ina/libra/internal/report"
	"github.com/libra-ina/libra/study/hotset"
	"github.com/libra-ina/libra/study/lossy"
	"github.com/libra-ina/libra/study/schedule"
	"github.com/libra-ina/libra/study/tofino"
)

//go:generate go test -run ^TestSchemasAreCurrent -update

var update = flag.Bool("update", false, "rewrite the schemas in docs/schema")

// outputs are the types that the commands print with --json.
var outputs = map[string]any{
	"libra agent":            SwitchLine{},
	"libra bench aggregator": aggregator.Report{},
	"libra bench allreduce":  allreduce.Report{},
	"libra bench codec":      codec.Report{},
	"libra bench latency":    latency.Report{},
	"libra bench pslite":     pslite.Report{},
	"libra bench ring":       ring.Report{},
	"libra bench engine":     engine.Report{},
	"libra bench glm":        glm.Report{},
	"libra bench push":       push.Report{},
	"libra bench schedule":   schedule.Report{},
	"libra bench soak":       soak.Report{},
	"libra bench tenants":    tenants.Report{},
	"libra capture":          CaptureList{},
	"libra chaos":            chaos.Report{},
	"libra codec study":      lossy.Report{},
	"libra demo":             demo.Result{},
	"libra evaluate":         Evaluation{},
	"libra glm":              GLMLine{},
	"libra hotset build":     HotSet{},
	"libra hotset learn":     LearnedHotSet{},
	"libra hotset show":      HotSet{},
	"libra hotset study":     hotset.Report{},
	"libra job list":         JobList{},
	"libra latency":          LatencyReport{},
	"libra lut study":        LutStudy{},
	"libra p4 study":         tofino.Report{},
	"libra plan":             plan.Report{},
	"libra ps":               ServerLine{},
	"libra run":              demo.ProgramsResult{},
	"libra simulate":         Simulated{},
	"libra stats":            Statistics{},
	"libra switch":           SwitchLine{},
	"libra top":              TopLine{},
	"libra version":          VersionInfo{},
	"libra worker":           WorkerLine{},
}

const schemaDir = "../../docs/schema"

// TestSchemasAreCurrent derives a schema of the output of each command from its Go type,
// with the comments of its fields, and compares it with the file in docs/schema.
func TestSchemasAreCurrent(t *testing.T) {
	files := map[string]bool{}
	t.Chdir("../..") // the comments' packages have paths relative to this folder
	r := jsonschema.Reflector{Anonymous: true, DoNotReference: true, AllowAdditionalProperties: true}
	r.Mapper = func(of reflect.Type) *jsonschema.Schema {
		if of.Implements(reflect.TypeFor[encoding.TextMarshaler]()) { // such as addresses
			return &jsonschema.Schema{Type: "string"}
		}
		return nil
	}
	for _, dir := range []string{"afxdp", "agent/agentproto", "bench", "cluster", "cmd", "internal", "link/capture", "lut", "simulation", "study", "telemetry", "train"} {
		if err := r.AddGoComments("github.com/libra-ina/libra", "./"+dir); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range r.CommentMap {
		if own, ok := strings.CutPrefix(name, "github.com/libra-ina/libra/cmd/libra."); ok {
			r.CommentMap[reflect.TypeFor[HotSet]().PkgPath()+"."+own] = text // of package main
		}
	}
	for path, value := range outputs {
		s := r.ReflectFromType(reflect.TypeOf(value))
		s.Title, s.Description = "Output of '"+path+" --json'", ""
		version := &jsonschema.Schema{Const: report.SchemaVersion, Description: "Version of the form of what libra prints."}
		s.Properties.Set("schema_version", version)
		if err := s.Properties.MoveToFront("schema_version"); err != nil {
			t.Fatal(err)
		}
		s.Required = append([]string{"schema_version"}, s.Required...)
		text, err := json.MarshalIndent(s, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		text = append(text, '\n')
		file := filepath.Join("docs/schema", schemaFile(path))
		files[file] = true
		if *update {
			if err := os.WriteFile(file, text, 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if old, err := os.ReadFile(file); err != nil || !bytes.Equal(old, text) {
			t.Errorf("%s is not what 'make generate' makes: %v\n%s", file, err, cmp.Diff(string(old), string(text)))
		}
	}
	all, err := filepath.Glob("docs/schema/*.json")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range all {
		if !files[file] {
			t.Errorf("%s belongs to no command", file)
		}
	}
}

// TestEveryOutputHasASchema checks that each command with --json has one, and no other.
func TestEveryOutputHasASchema(t *testing.T) {
	want := map[string]bool{}
	for path, c := range commands() {
		if c.Flags().Lookup("json") != nil {
			want[path] = true
		}
	}
	if diff := cmp.Diff(slices.Sorted(maps.Keys(want)), slices.Sorted(maps.Keys(outputs))); diff != "" {
		t.Errorf("commands with --json (-), and with a schema (+):\n%s", diff)
	}
}

// TestKeysAreNamedAlike checks that keys are words in lower case with underscores between them, and
// have units at their ends: s, ns and bytes.
func TestKeysAreNamedAlike(t *testing.T) {
	form := regexp.MustCompile(`^[a-z][a-z0-9]*(_[a-z0-9]+)*$`)
	odd := regexp.MustCompile(`second|milli|micro|nano|(^|_)(us|ms|pps|kb|mb|kib|sec)(_|$)|^(ns|s|bytes)_`)
	for path := range outputs {
		n := 0
		eachKey(t, readSchema(t, path), func(key string) {
			n++
			if !form.MatchString(key) || odd.MatchString(strings.TrimPrefix(key, "ns_per_")) {
				t.Errorf("%s: the key %q", path, key)
			}
		})
		if n < 2 {
			t.Errorf("%s: %d keys", path, n)
		}
	}
}

// eachKey calls f with each property's name.
func eachKey(t *testing.T, schema map[string]any, f func(string)) {
	t.Helper()
	properties, _ := schema["properties"].(map[string]any)
	for key, sub := range properties {
		f(key)
		if sub, ok := sub.(map[string]any); ok { // not just true, which allows all
			eachKey(t, sub, f)
		} else {
			t.Errorf("%s has no type", key)
		}
	}
	for _, inner := range []string{"items", "additionalProperties"} {
		if sub, ok := schema[inner].(map[string]any); ok {
			eachKey(t, sub, f)
		}
	}
}

func readSchema(t *testing.T, path string) (schema map[string]any) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(schemaDir, schemaFile(path)))
	if err == nil {
		err = json.Unmarshal(text, &schema)
	}
	if err != nil {
		t.Fatal(err)
	}
	return schema
}

// conforms fails unless each line that a command printed conforms to its schema, and has no key
// that the schema lacks.
func conforms(t *testing.T, path, lines string) {
	t.Helper()
	if err := conformity(readSchema(t, path), lines); err != nil {
		t.Errorf("%s: %v", path, err)
	}
}

func conformity(schema map[string]any, lines string) error {
	closeObjects(schema)
	c := validator.NewCompiler()
	if err := c.AddResource("schema.json", schema); err != nil {
		return err
	}
	compiled, err := c.Compile("schema.json")
	if err != nil {
		return err
	}
	n := 0
	for line := range strings.Lines(lines) {
		n++
		value, err := validator.UnmarshalJSON(strings.NewReader(line))
		if err == nil {
			err = compiled.Validate(value)
		}
		if err != nil {
			return fmt.Errorf("%w\n%s", err, line)
		}
	}
	if n == 0 {
		return errors.New("no output")
	}
	return nil
}

// closeObjects forbids unknown members of the objects whose members a schema names.
func closeObjects(schema map[string]any) {
	if properties, ok := schema["properties"].(map[string]any); ok {
		schema["additionalProperties"] = false
		for _, sub := range properties {
			if sub, ok := sub.(map[string]any); ok {
				closeObjects(sub)
			}
		}
	}
	for _, inner := range []string{"items", "additionalProperties"} {
		if sub, ok := schema[inner].(map[string]any); ok {
			closeObjects(sub)
		}
	}
}

// TestStudyConforms runs the one study whose JSON no other test prints.
func TestStudyConforms(t *testing.T) {
	if _, stderr, code := inProcess(t, "hotset", "study", "--rounds", "1", "--rows", "500", "--json"); code != 0 {
		t.Error(stderr)
	}
}

// TestConformsNoticesMistakes breaks an output in each way.
func TestConformsNoticesMistakes(t *testing.T) {
	good := `{"schema_version":1,"rows":1,"task":"classification","auc":0.5,"log_loss":1}`
	conforms(t, "libra evaluate", good)
	conforms(t, "libra evaluate", good+"\n"+good+"\n")
	for _, bad := range []string{
		`{"rows":1,"task":"classification","auc":0.5,"log_loss":1}`, `{"schema_version":2,"rows":1,"task":"classification","auc":0.5,"log_loss":1}`,
		`{"schema_version":1,"rows":"1","task":"classification","auc":0.5,"log_loss":1}`, `{"schema_version":1,"rows":1,"auc":0.5,"log_loss":1}`,
		`{"schema_version":1,"rows":1,"task":"classification","auc":0.5,"log_loss":1,"new":1}`, `[]`, good + "}", "", good + "\n{}",
	} {
		if conformity(readSchema(t, "libra evaluate"), bad) == nil {
			t.Errorf("%s passes", bad)
		}
	}
}
