// SPDX-License-Identifier: Apache-2.0

package report

import (
	"math"
	"strings"
	"testing"
)

type inner struct {
	List   []int             `json:"list"`
	Names  map[string][]int  `json:"names"`
	Hidden []int             `json:"hidden,omitempty"`
	Raw    *map[string]inner `json:"raw,omitempty"`
	own    []int
}

func TestJSONBeginsWithItsVersionAndHasNoNull(t *testing.T) {
	given := inner{Names: map[string][]int{"a": nil}, own: []int{1}, Raw: &map[string]inner{"b": {}}}
	for want, value := range map[string]any{
		`{"schema_version":1,"list":[],"names":{"a":[]},"raw":{"b":{"list":[],"names":{}}}}`: given,
		`{"schema_version":1,"ready":7}`:                          map[string]any{"ready": 7},
		`{"schema_version":1,"inner":{"list":[],"names":{}}}`:     map[string]any{"inner": &inner{}},
		`{"schema_version":1}`:                                    struct{}{},
		`{"schema_version":1,"list":[3],"names":{},"hidden":[1]}`: &inner{List: []int{3}, Hidden: []int{1}},
	} {
		var b strings.Builder
		if err := WriteJSON(&b, value); err != nil || b.String() != want+"\n" {
			t.Errorf("%s, %v, want %s", b.String(), err, want)
		}
	}
	if given.List != nil || given.Names["a"] != nil {
		t.Error("the value that was given has changed")
	}
}

func TestJSONRefuses(t *testing.T) {
	for want, value := range map[string]any{"no JSON object": []int{1}, "NaN": map[string]float64{"a": math.NaN()}} {
		var b strings.Builder
		if err := WriteJSON(&b, value); err == nil || !strings.Contains(err.Error(), want) || b.Len() > 0 {
			t.Errorf("%q, %v, want an error about %s", b.String(), err, want)
		}
	}
}
