// SPDX-License-Identifier: Apache-2.0

package program

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// source is the description of a program's tables and registers from its text, without a compiler:
// enough for the TNA program, for which there is no P4Info.
type source struct {
	t        *testing.T
	numbers  map[string]string // #define name number
	widths   map[string]int    // of fields, by their last name
	controls map[string]string // text by name
}

var (
	commentPattern  = regexp.MustCompile(`(?m)//.*$`)
	includePattern  = regexp.MustCompile(`(?m)^#include "(.*)"$`)
	numberPattern   = regexp.MustCompile(`(?m)^#define (\w+) (\d+)$`)
	fieldPattern    = regexp.MustCompile(`(?m)^ +(?:bit|int)<(\d+)> (\w+);`)
	controlPattern  = regexp.MustCompile(`(?m)^control (\w+)`)
	instancePattern = regexp.MustCompile(`(?m)^ +([A-Z]\w+)\(\) (\w+);`)
	tablePattern    = regexp.MustCompile(`(?s)table (\w+) \{(.*?)\n    \}`)
	keyPattern      = regexp.MustCompile(`([\w.]+)(\.isValid\(\)|\[\d+:\d+\])?: (exact|ternary)(?: @name\("(\w+)"\))?;`)
	actionPattern   = regexp.MustCompile(`(?s)action (\w+)\((.*?)\)`)
	dataPattern     = regexp.MustCompile(`bit<(\d+)> (\w+)`)
	registerPattern = regexp.MustCompile(`Register<(?:bit|int)<(\d+)>, bit<\d+>>\((.*?), 0\) (\w+)(##j)?;`)
	counterPattern  = regexp.MustCompile(`COUNTER\((.*?), (\w+)\);`)
)

// readSource reads a program with its includes. If a size is defined twice, the first definition
// counts, as with the program's #ifndef.
func readSource(t *testing.T, path string) *source {
	t.Helper()
	s := &source{t: t, numbers: map[string]string{}, widths: map[string]int{}, controls: map[string]string{}}
	s.read(path)
	return s
}

func (s *source) read(path string) {
	s.t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		s.t.Fatal(err)
	}
	text := commentPattern.ReplaceAllString(string(b), "")
	for _, m := range numberPattern.FindAllStringSubmatch(text, -1) {
		if s.numbers[m[1]] == "" {
			s.numbers[m[1]] = m[2]
		}
	}
	for _, m := range includePattern.FindAllStringSubmatch(text, -1) {
		s.read(filepath.Join(filepath.Dir(path), m[1]))
	}
	for _, m := range fieldPattern.FindAllStringSubmatch(text, -1) {
		s.widths[m[2]], _ = strconv.Atoi(m[1])
	}
	at := controlPattern.FindAllStringSubmatchIndex(text, -1)
	for i, m := range at {
		end := len(text)
		if i+1 < len(at) {
			end = at[i+1][0]
		}
		s.controls[text[m[2]:m[3]]] = text[m[0]:end]
	}
}

// size evaluates a product of numbers and their names.
func (s *source) size(product string) int {
	s.t.Helper()
	n := 1
	for _, factor := range strings.Split(product, " * ") {
		if v, ok := s.numbers[factor]; ok {
			factor = v
		}
		v, err := strconv.Atoi(factor)
		if err != nil {
			s.t.Fatalf("size %q: %v", product, err)
		}
		n *= v
	}
	return n
}

// objects returns the objects of a control and of its instances of other controls.
func (s *source) objects(control, path string) (all []Object) {
	s.t.Helper()
	text, ok := s.controls[control]
	if !ok {
		s.t.Fatalf("no control %s", control)
	}
	path += "."
	actions := map[string][]Datum{"NoAction": nil}
	for _, m := range actionPattern.FindAllStringSubmatch(text, -1) {
		var data []Datum
		for _, p := range dataPattern.FindAllStringSubmatch(m[2], -1) {
			width, _ := strconv.Atoi(p[1])
			data = append(data, Datum{Name: p[2], Width: width})
		}
		actions[m[1]] = data
	}
	for _, m := range tablePattern.FindAllStringSubmatch(text, -1) {
		all = append(all, s.table(path+m[1], m[2], actions))
	}
	for _, m := range registerPattern.FindAllStringSubmatch(text, -1) {
		width, _ := strconv.Atoi(m[1])
		names := []string{m[3]}
		if m[4] != "" { // one for each lane
			names = nil
			for j := range s.size("LANES") {
				names = append(names, fmt.Sprint(m[3], j))
			}
		}
		for _, name := range names {
			all = append(all, Object{Name: path + name, Kind: KindRegister, Size: s.size(m[2]), Width: width})
		}
	}
	for _, m := range counterPattern.FindAllStringSubmatch(text, -1) {
		all = append(all, Object{Name: path + m[2], Kind: KindCounter, Size: s.size(m[1]), Width: 64})
	}
	for _, m := range instancePattern.FindAllStringSubmatch(text, -1) {
		if m[1] != "Checksum" {
			all = append(all, s.objects(m[1], path+m[2])...)
		}
	}
	return all
}

func (s *source) table(name, text string, actions map[string][]Datum) Object {
	s.t.Helper()
	o := Object{Name: name, Kind: KindTable}
	if strings.Contains(text, "const entries") {
		o.Kind = KindConstantTable
	}
	// A list of lanes' keys is a macro.
	if m := regexp.MustCompile(`#define \w+\(j\) (.*)lane##j\.(\w+): (\w+);`).FindStringSubmatch(text); m != nil {
		for j := range s.size("LANES") {
			o.Keys = append(o.Keys, Datum{Name: fmt.Sprintf("%slane%d.%s", m[1], j, m[2]), Match: m[3], Width: s.widths[m[2]]})
		}
	} else {
		for _, k := range keyPattern.FindAllStringSubmatch(text, -1) {
			o.Keys = append(o.Keys, s.key(k))
		}
	}
	list := regexp.MustCompile(`actions = \{(.*?)\}`).FindStringSubmatch(text)
	for _, a := range strings.FieldsFunc(list[1], func(r rune) bool { return r == ' ' || r == ';' }) {
		data, ok := actions[a]
		if !ok {
			s.t.Fatalf("table %s: no action %s", name, a)
		}
		o.Actions = append(o.Actions, Action{Name: a, Data: data})
	}
	if m := regexp.MustCompile(`default_action = (\w+)`).FindStringSubmatch(text); m != nil {
		o.Default = m[1]
	}
	if m := regexp.MustCompile(`size = (.*);`).FindStringSubmatch(text); m != nil {
		o.Size = s.size(m[1])
	} else {
		o.Size = strings.Count(text, "):")
	}
	return o
}

// key returns the control plane's name of a key, and its width.
func (s *source) key(m []string) Datum {
	s.t.Helper()
	d := Datum{Name: m[1] + m[2], Match: m[3]}
	last := m[1][strings.LastIndex(m[1], ".")+1:]
	var high, low int
	switch {
	case m[2] == ".isValid()":
		d.Name, d.Width = m[1]+".$valid$", 1
	case m[2] != "":
		if _, err := fmt.Sscanf(m[2], "[%d:%d]", &high, &low); err != nil {
			s.t.Fatal(err)
		}
		d.Width = high - low + 1
	case last == "from": // a port
		d.Width = 9
	case strings.HasPrefix(m[1], "hdr.ethernet."):
		d.Width = 48
	case strings.HasPrefix(m[1], "hdr.ipv4."):
		d.Width = 32
	case strings.HasPrefix(m[1], "hdr.udp."), strings.HasPrefix(m[1], "hdr.libra."):
		d.Width = 16
	}
	if d.Width == 0 {
		s.t.Fatalf("key %s: unknown width", d.Name)
	}
	if m[4] != "" {
		d.Name = m[4]
	}
	return d
}
