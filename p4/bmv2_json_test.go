// SPDX-License-Identifier: Apache-2.0

package p4

import "encoding/json"

// The used parts of the device configuration.
type configuration struct {
	HeaderTypes []struct {
		Name   string
		Fields [][]json.RawMessage // name, width or "*", signed
	} `json:"header_types"`
	Headers []struct {
		Name     string
		Type     string `json:"header_type"`
		Metadata bool
	}
	Errors  [][]json.RawMessage
	Parsers []struct {
		Init   string `json:"init_state"`
		States []struct {
			Name string
			Ops  []struct {
				Op         string
				Parameters []value
			} `json:"parser_ops"`
			Transitions []struct {
				Type  string
				Value *string
				Mask  *string
				Next  *string `json:"next_state"`
			}
			Key []value `json:"transition_key"`
		} `json:"parse_states"`
	}
	Deparsers []struct{ Order []string }
	Registers []struct {
		Name  string
		Size  int
		Width int `json:"bitwidth"`
	} `json:"register_arrays"`
	Counters []struct {
		Name string
		Size int
	} `json:"counter_arrays"`
	Calculations []struct {
		Name  string
		Algo  string
		Input []value
	}
	Checksums []struct {
		Target      any
		Calculation string
		Verify      bool
		Condition   *value `json:"if_cond"`
	}
	FieldLists []struct {
		ID       int
		Elements []value
	} `json:"field_lists"`
	Actions []struct {
		Name       string
		ID         int
		Data       []struct{ Name string } `json:"runtime_data"`
		Primitives []struct {
			Op         string
			Parameters []value
		}
	}
	Pipelines []struct {
		Name         string
		Init         *string `json:"init_table"`
		Tables       []configuredTable
		Conditionals []struct {
			Name       string
			Expression value
			True       *string `json:"true_next"`
			False      *string `json:"false_next"`
		}
	}
}

// configuredTable is a table of the configuration.
type configuredTable struct {
	Name string
	Key  []struct {
		Match  string `json:"match_type"`
		Target any
	}
	Actions []string
	IDs     []int              `json:"action_ids"`
	Base    *string            `json:"base_default_next"`
	Next    map[string]*string `json:"next_tables"`
	Default *struct {
		ID   int      `json:"action_id"`
		Data []string `json:"action_data"`
	} `json:"default_entry"`
	Entries []struct {
		Key []struct {
			Match  string `json:"match_type"`
			Key    any
			Prefix int `json:"prefix_length"`
		} `json:"match_key"`
		Action struct {
			ID   int      `json:"action_id"`
			Data []string `json:"action_data"`
		} `json:"action_entry"`
	}
}

// value is a parameter of a primitive, or a part of an expression.
type value struct {
	Type  string
	Value any
	Width int `json:"bitwidth"`
}

// valueOf returns a part of an expression: a value, or one without a type if it is an operation.
func valueOf(m map[string]any) *value {
	t, _ := m["type"].(string)
	return &value{Type: t, Value: m["value"]}
}
