// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"

	"github.com/libra-ina/libra/control"
	"github.com/libra-ina/libra/p4"
	"github.com/libra-ina/libra/train/settings"
)

// paths lists the fields of a type, those of mappings in it included.
func paths(t reflect.Type, path string) (all []string) {
	names, types := fieldsOf(t)
	for _, name := range names {
		at, t := join(path, name), types[name]
		if t.Kind() == reflect.Pointer && isMapping(t.Elem()) {
			t = t.Elem()
		}
		switch {
		case t.Kind() == reflect.Slice && isMapping(t.Elem()):
			all = append(all, paths(t.Elem(), at+"[]")...)
		case isMapping(t):
			all = append(all, paths(t, at)...)
		default:
			all = append(all, at)
		}
	}
	return all
}

// TestReferenceIsComplete holds the reference against the fields that files may have.
func TestReferenceIsComplete(t *testing.T) {
	var listed []string
	for _, f := range Reference() {
		listed = append(listed, f.Path)
		if f.About == "" || f.Kind == "" || f.Example == "" {
			t.Errorf("%+v", f)
		}
	}
	fields := paths(reflect.TypeFor[Config](), "")
	slices.Sort(fields)
	slices.Sort(listed)
	if diff := cmp.Diff(fields, listed); diff != "" {
		t.Errorf("(-fields +reference):\n%s", diff)
	}
	page, err := os.ReadFile("../docs/config.md")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(page, Markdown()) {
		t.Error("docs/config.md is not what 'make generate' writes: run that")
	}
}

// set gives a field of a document a value.
func set(doc map[string]any, path string, value any) {
	field, rest, deeper := strings.Cut(path, ".")
	if field, list := strings.CutSuffix(field, "[]"); list {
		items, _ := doc[field].([]any)
		if len(items) == 0 {
			items = []any{map[string]any{}}
		}
		doc[field] = items
		set(items[0].(map[string]any), rest, value)
		return
	}
	if !deeper {
		doc[field] = value
		return
	}
	inner, _ := doc[field].(map[string]any)
	if inner == nil {
		inner = map[string]any{}
	}
	doc[field] = inner
	set(inner, rest, value)
}

// example returns the example with fields changed: "PATH: VALUE", separated by semicolons.
func example(t *testing.T, changes string) []byte {
	t.Helper()
	doc := map[string]any{}
	if err := yaml.Unmarshal(Example(), &doc); err != nil {
		t.Fatal(err)
	}
	for change := range strings.SplitSeq(changes, "; ") {
		path, text, _ := strings.Cut(change, ": ")
		var value any
		if err := yaml.Unmarshal([]byte(text), &value); err != nil {
			t.Fatal(err)
		}
		if path != "" {
			set(doc, path, value)
		}
	}
	out, err := yaml.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// The example is a valid file, and stays one of known fields with values of their kind
// if any line of it is written without its comment sign.
func TestExampleIsValid(t *testing.T) {
	c, err := parse(Example())
	if err != nil {
		t.Fatal(err)
	}
	if c.Backend != BackendUDP || len(c.Workers) != 1 || c.Server.Checkpoint == "" {
		t.Errorf("%+v", c)
	}
	for _, f := range Reference() {
		if !bytes.Contains(Example(), []byte(": "+f.Example+" ")) {
			t.Errorf("the example has no value %q, of %s", f.Example, f.Path)
		}
		var doc yaml.Node
		if err := yaml.Unmarshal(example(t, f.Path+": "+f.Example), &doc); err != nil {
			t.Fatal(err)
		}
		if errs := checkNode(doc.Content[0], reflect.TypeFor[Config](), ""); errs != nil {
			t.Errorf("%s: %s is not a valid value: %v", f.Path, f.Example, errs)
		}
	}
}

// Whatever has a default has it in the reference.
func TestReferenceHasDefaults(t *testing.T) {
	reference := map[string]Field{}
	for _, f := range Reference() {
		reference[f.Path] = f
	}
	for _, c := range []Config{{}, {Backend: BackendUDP}, {Switch: Switch{Plane: PlaneP4}}, {Data: Data{Synthetic: &Synthetic{}}}} {
		for _, d := range c.defaults() {
			f := reference[d.field]
			if f.Default == "" && !strings.Contains(f.About, "The default is ") {
				t.Errorf("%s has the default %v, of which the reference says nothing", d.field, d.value)
			}
		}
	}
	for field, want := range map[string]any{
		"switch.slots":       control.DefaultSlots,
		"switch.p4.election": p4.DefaultElection,
	} {
		if about := reference[field].About; !strings.HasSuffix(about, fmt.Sprint("The default is ", want)) {
			t.Errorf("%s: %q, the default is %v", field, about, want)
		}
	}
}

// What the reference calls impossible is refused, in the name of the field and, if the
// file has it, with its line.
func TestReferenceHasRanges(t *testing.T) {
	const afxdp = "; backend: afxdp; switch.interfaces: [eth1]; server.interface: eth0; workers[].interface: eth0"
	refused := map[string][]string{
		"backend":                   {"rdma"},
		"port":                      {"0", "65536", "-1"},
		"silence":                   {"0s", "-1s", "5"},
		"job.id":                    {"-1", "256"},
		"job.hot_set":               {`""`},
		"job.arithmetic":            {"float"},
		"job.ids":                   {"[256]; job.sync: true", "[2, 2]; job.sync: true", "[1]; job.sync: true", "[2]; job.sync: true; job.replay_mib: 5"},
		"job.plan":                  {"auto", "auto; job.sync: true", "auto; switches[].name: a; job.sync: true; job.replay_mib: 5"},
		"job.exponent":              {"-101", "61", "-46; job.arithmetic: lut"},
		"job.harvest":               {"999ns", "60m1us", "20ms; job.sync: true", "20"},
		"job.staleness":             {"0", "-1", "4; job.sync: true"},
		"job.accumulate":            {"0", "-1", "4; job.sync: true"},
		"job.harvest_frames":        {"5; job.sync: true"},
		"job.replay_mib":            {"0", "-1", "1025"},
		"switch.address":            {`""`, "host", "::1"},
		"switch.control":            {`""`, "127.0.0.1"},
		"switch.plane":              {"tofino", "xdp", "p4", "model" + afxdp},
		"switch.interfaces":         {"[eth1]", "[]" + strings.Replace(afxdp, "; switch.interfaces: [eth1]", "", 1)},
		"switch.xdp_mode":           {"auto", "offload" + afxdp},
		"switch.slots":              {"0", "-1"},
		"switch.threaded_napi":      {"true"},
		"switch.silence":            {"299ms", "0s", "-1s", "1s; switch.plane: p4"},
		"switch.evacuate":           {"true"},
		"switch.stripes":            {"0", "26" + afxdp, "11", "2; switch.plane: p4"},
		"switch.p4.runtime":         {"127.0.0.1:9559"},
		"switch.p4.election":        {"0; switch.plane: p4"},
		"switch.p4.ports":           {"[510]; switch.plane: p4", "[1, 2, 1]; switch.plane: p4"},
		"switch.p4.hosts":           {`{"02:00:00:00:00:01": 510}; switch.plane: p4`, "{host: 1}; switch.plane: p4"},
		"switch.p4.p4info":          {"a; switch.plane: p4"},
		"switch.p4.config":          {"a; switch.plane: p4"},
		"standbys[].address":        {`""`, "host", "::1", "127.0.0.2"},
		"standbys[].control":        {`""`, "127.0.0.1:7700", "127.0.0.1"},
		"standbys[].interfaces":     {"[eth1]", "[]" + afxdp},
		"standbys[].xdp_mode":       {"auto", "offload" + afxdp},
		"standbys[].slots":          {"0", "-1"},
		"standbys[].threaded_napi":  {"true"},
		"switches[].name":           {`""`, strings.Repeat("x", 64)},
		"switches[].address":        {`""`, "host", "::1", "10.0.0.1; switches[].plain: true"},
		"switches[].links":          {"[a]", "[a]; switches[].name: a"},
		"switches[].slots":          {"0", "-1", "5; switches[].plain: true"},
		"switches[].parent":         {"a", "a; switches[].name: a", "a; switches[].plain: true"},
		"switches[].control":        {"127.0.0.1", "127.0.0.1:7700; switches[].plain: true"},
		"switches[].interfaces":     {"[eth1]", "[eth1]; switches[].control: 127.0.0.1:7799"},
		"switches[].xdp_mode":       {"auto", "auto; switches[].control: 127.0.0.1:7799", "offload; switches[].control: 127.0.0.1:7799" + afxdp},
		"switches[].threaded_napi":  {"true", "true; switches[].control: 127.0.0.1:7799"},
		"server.at":                 {"a", `""; switches[].name: a`},
		"workers[].at":              {"a", `""; switches[].name: a`},
		"server.address":            {`""`, "::1"},
		"server.interface":          {"eth0", `""; backend: afxdp`},
		"server.queue":              {"-1", "1"},
		"server.control":            {`""`},
		"server.checkpoint_every":   {"-1s", `1s; server.checkpoint: ""`},
		"server.checkpoint_steps":   {"10", `10; job.sync: true; server.checkpoint: ""`},
		"server.rejoin":             {"0s", "-1s"},
		"server.max_rows":           {"0", "2147483648"},
		"workers[].id":              {"0", "65535"},
		"workers[].address":         {`""`, "::1"},
		"workers[].interface":       {"eth0", `""; backend: afxdp`},
		"workers[].queue":           {"-1", "1"},
		"model.kind":                {"ffm"},
		"model.task":                {"ranking"},
		"model.factors":             {"0", "65", "8; model.kind: lr"},
		"model.dim":                 {"0", "66", "-1", "16; model.kind: lr"},
		"model.optimizer":           {"adam", "none", "none; job.sync: true", `none; data.train: ""`},
		"model.learning_rate":       {"0", "-1", "fast", `1; model.optimizer: none; job.sync: true; data.train: ""`},
		"model.initial_accumulator": {"0", "1; model.optimizer: sgd"},
		"model.init_scale":          {"0", "1; model.kind: lr"},
		"model.l2":                  {"-1"},
		"model.batch":               {"0", "-1"},
		"model.epochs":              {"0", "-1"},
		"data.train":                {"a; data.synthetic.rows: 10"},
		"data.test":                 {`a; data.train: ""; data.synthetic.rows: 10`},
		"data.window":               {"-1"},
		"data.synthetic.test":       {`-1; data.train: ""`},
		"data.synthetic.rows":       {`-1; data.train: ""`, `0; data.train: ""`},
		"data.synthetic.first":      {`-1; data.train: ""`},
		"data.synthetic.hot_share":  {`1; data.train: ""`, `0; data.train: ""`},
		"data.synthetic.hot":        {`0; data.train: ""`, `-1; data.train: ""`},
		"telemetry.port":            {"0x10000", "-1", "7700"},
		"telemetry.sample":          {"-64", "3", "63", "131072"},
		"codec.bound":               {"0", "15", "-1"},
		"codec.scale":               {"3", "-127; codec.bound: 10", "127; codec.bound: 10"},
		"faults.loss":               {"-0.1", "1"},
		"faults.duplicate":          {"-0.1", "1"},
		"faults.reorder":            {"-0.1", "1"},
		"faults.seed":               {"1"},
		"tls.ca":                    {"ca.pem"},
		"tls.cert":                  {"cert.pem"},
		"tls.key":                   {"key.pem"},
	}
	for path, values := range maps.Clone(refused) {
		if field, ofServer := strings.CutPrefix(path, "server."); ofServer {
			for _, value := range values {
				refused["servers[]."+field] = append(refused["servers[]."+field], strings.ReplaceAll(value, "server.", "servers[]."))
			}
		}
	}
	for _, f := range Reference() {
		if f.Range != "" && refused[f.Path] == nil {
			t.Errorf("%s: nothing shows that %q is true", f.Path, f.Range)
		}
		for _, value := range refused[f.Path] {
			_, err := parse(example(t, f.Path+": "+value))
			name := strings.ReplaceAll(f.Path, "[]", "[0]")
			if top, _, _ := strings.Cut(name, "."); top == "data" || top == "tls" {
				name = top // that two fields belong together, or exclude each other
			}
			if i := strings.Index(name, "p4."); i >= 0 {
				name = name[:i+2]
			}
			if err == nil || !strings.Contains(err.Error(), name) {
				t.Errorf("%s: %s: %v", f.Path, value, err)
			} else if !strings.Contains(err.Error(), "line ") && value[:2] != `""` && name == f.Path {
				t.Errorf("%s: %s: no line: %v", f.Path, value, err)
			}
		}
	}
}

// A null stands for the default, as if the field were left out.
func TestNullIsAsIfLeftOut(t *testing.T) {
	for path, with := range map[string]string{
		"port": "", "switch.slots": "", "switch.plane": "", "job.exponent": "", "model.kind": "", "tls": "", "server.max_rows": "", "server.checkpoint_every": "",
		"data.synthetic.hot": `data.train: ""; data.synthetic.rows: 10; `,
	} {
		if _, err := parse(example(t, with+path+": null")); err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
	_, err := parse(example(t, "server.address: null"))
	if err == nil || !strings.HasPrefix(err.Error(), "line ") || !strings.HasSuffix(err.Error(), "server.address: an IP address is required") {
		t.Errorf("what is required: %v", err)
	}
}

// Mistakes are told in the words of the file: line, field, and what is possible.
func TestMistakesSpeakYAML(t *testing.T) {
	for text, want := range map[string]string{
		"job:\n  id: x\n":                             `line 2: job.id: "x" is not an integer from 0 to 65535`,
		"job:\n  id: 70000\n":                         `line 2: job.id: "70000" is not an integer from 0 to 65535`,
		"a: b: c\n":                                   "line 1: mapping values are not allowed",
		"job:\n  id: 1\n id: 2\n":                     "this is not YAML: line ",
		"job:\n  id: 1\n  id: 2\n":                    `line 3: mapping key "id" already defined at line 2`,
		"switch: {p4: {hosts: {a: 1,\n a: 2}}}":       `line 2: mapping key "a" already defined at line 1`,
		"silence: 5s\nport: 1\nsilence: 5s\n":         `line 3: mapping key "silence" already defined at line 1`,
		"job: &j {<<: *j}\n":                          "anchor 'j' value contains itself",
		"job: 7\n":                                    "line 1: job: a mapping with fields (id, ids, plan, hot_set, arithmetic,",
		"- 1\n":                                       "line 1: a mapping with fields (backend, port,",
		"silence: 5\n":                                `line 1: silence: "5" is not a time such as 20ms, 5s or 1m`,
		"switch:\n  control: 7700\n":                  `line 2: switch.control: "7700" is not an IP address with a port such as 10.0.0.1:7700`,
		"switch:\n  address: host\n":                  `line 2: switch.address: "host" is not an IP address such as 10.0.0.1`,
		"switch:\n  interfaces: eth1\n":               "line 2: switch.interfaces: a list, each item a text is wanted",
		"switch:\n  interfaces: [[]]\n":               "line 2: switch.interfaces[0]: a text is wanted",
		"switch: {p4: {hosts: [1]}}\n":                "line 1: switch.p4.hosts: a mapping, each value an integer from 0 on is wanted",
		"switch: {p4: {hosts: {a: b}}}":               `line 1: switch.p4.hosts.a: "b" is not an integer from 0 on`,
		"workers:\n- id: 1\n  ip: a\n":                "line 3: workers[0].ip: no such field: id, address, interface, queue, at are possible",
		"model:\n  learning_rate: a\n":                `line 2: model.learning_rate: "a" is not a number`,
		"job:\n  sync: maybe\n":                       `line 2: job.sync: "maybe" is not true or false`,
		"job:\n  exponent: 1.5\n":                     `line 2: job.exponent: "1.5" is not an integer`,
		"workers:\n- {id: 1}\n-\n":                    "line 3: workers[1]: it is null: remove it, or give a mapping with fields (id, address,",
		"servers: [null]\n":                           "line 1: servers[0]: it is null",
		"switch:\n  interfaces: [~, eth1]\n":          "line 2: switch.interfaces[0]: it is null: remove it, or give a text",
		"switch: {p4: {ports: [1, !!null ]}}":         "line 1: switch.p4.ports[1]: it is null: remove it, or give an integer from 0 on",
		"switch: {p4: {hosts: {a: null}}}":            "line 1: switch.p4.hosts.a: it is null",
		"capture: &n\nworkers: [*n]\n":                "workers[0]: it is null",
		"a: &b {id: 1, ip: 2}\nworkers: [{<<: *b}]\n": "line 1: workers[0].ip: no such field",
	} {
		_, err := parse([]byte(text))
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "unmarshal") {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	_, err := parse(example(t, "model.batch: -3; workers[].id: 0; job.id: 300"))
	for _, want := range []string{"model.batch: -3 is less than 1", "workers[0].id: workers are numbered", "job.id: 300 is not in 0..255"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
		for line := range strings.Lines(fmt.Sprint(err)) {
			if !strings.HasPrefix(line, "line ") {
				t.Errorf("no line: %s", line)
			}
		}
	}
}

// What the page and the file say of the fields of training is what package settings says.
func TestTrainingFieldsHaveOneHome(t *testing.T) {
	reference := map[string]Field{}
	for _, f := range Reference() {
		reference[f.Path] = f
	}
	var c Config
	c.SetDefaults()
	file := string(Example())
	for _, home := range settings.All() {
		f := reference[home.Name()]
		if f.About != home.Sentence() || f.Range != home.Possible() || f.Default != "" && f.Default != home.Usual() {
			t.Errorf("%s: the page says %+v, package settings %q, %q and %s", home.Name(), f, home.Sentence(), home.Possible(), home.Usual())
		}
		if !strings.Contains(file, "# "+home.Sentence()) {
			t.Errorf("%s: the example does not say %q", home.Name(), home.Sentence())
		}
		value := reflect.ValueOf(c)
		for name := range strings.SplitSeq(home.Name(), ".") {
			value = value.FieldByIndex(fieldOf(value.Type(), name))
		}
		if got := fmt.Sprint(value.Interface()); got != home.Usual() {
			t.Errorf("%s: an empty file means %s, the default is %s", home.Name(), got, home.Usual())
		}
	}
}

// fieldOf finds the field of a mapping with a name.
func fieldOf(t reflect.Type, name string) []int {
	for _, f := range reflect.VisibleFields(t) {
		if tag, _, _ := strings.Cut(f.Tag.Get("yaml"), ","); tag == name {
			return f.Index
		}
	}
	return nil
}
