// SPDX-License-Identifier: Apache-2.0

package report

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"reflect"
)

// SchemaVersion is the version of the objects that libra prints. It is incremented when a member is
// removed or changes its meaning; members may be added at any time.
const SchemaVersion = 1

// versionKey is the first member of each object.
const versionKey = "schema_version"

// WriteJSON writes a value, which marshals to an object, as one line. The object begins
// with the member schema_version.
func WriteJSON(w io.Writer, value any) error {
	text, err := MarshalJSON(value)
	if err != nil {
		return err
	}
	_, err = w.Write(append(text, '\n'))
	return err
}

// MarshalJSON returns what [WriteJSON] writes, without the end of the line. Nil lists and maps
// become empty ones, as readers of JSON expect, not null.
func MarshalJSON(value any) ([]byte, error) {
	text, err := json.Marshal(full(reflect.ValueOf(value)).Interface())
	if err != nil {
		return nil, fmt.Errorf("report: %w", err)
	}
	members, isObject := bytes.CutPrefix(text, []byte("{"))
	if !isObject {
		return nil, fmt.Errorf("report: %T is no JSON object", value)
	}
	head := fmt.Appendf(nil, `{"%s":%d`, versionKey, SchemaVersion)
	if len(members) > 1 { // more than the bracket
		head = append(head, ',')
	}
	return append(head, members...), nil
}

// full returns a copy of a value in which no list and no map is nil.
func full(v reflect.Value) reflect.Value {
	to := reflect.New(v.Type()).Elem()
	to.Set(v)
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			to.Set(reflect.New(v.Type().Elem()))
			to.Elem().Set(full(v.Elem()))
		}
	case reflect.Interface:
		if !v.IsNil() {
			to.Set(full(v.Elem()))
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				to.Field(i).Set(full(v.Field(i)))
			}
		}
	case reflect.Slice:
		to.Set(reflect.MakeSlice(v.Type(), v.Len(), v.Len()))
		for i := range v.Len() {
			to.Index(i).Set(full(v.Index(i)))
		}
	case reflect.Map:
		to.Set(reflect.MakeMapWithSize(v.Type(), v.Len()))
		for _, key := range v.MapKeys() {
			to.SetMapIndex(key, full(v.MapIndex(key)))
		}
	}
	return to
}
