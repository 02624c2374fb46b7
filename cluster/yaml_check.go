// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"encoding"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// fieldsOf lists the fields of a mapping by name, including those of embedded structs.
func fieldsOf(t reflect.Type) (names []string, types map[string]reflect.Type) {
	types = map[string]reflect.Type{}
	for i := range t.NumField() {
		f := t.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		if options == "inline" {
			inner, innerTypes := fieldsOf(f.Type)
			names = append(names, inner...)
			for name, t := range innerTypes {
				types[name] = t
			}
			continue
		}
		if name == "-" { // not in files
			continue
		}
		names = append(names, name)
		types[name] = f.Type
	}
	return names, types
}

// isMapping reports whether values of a type are mappings with fields.
func isMapping(t reflect.Type) bool {
	return t.Kind() == reflect.Struct && !reflect.PointerTo(t).Implements(reflect.TypeFor[encoding.TextUnmarshaler]())
}

// join returns the path of a field in a mapping.
func join(path, field string) string { return strings.TrimPrefix(path+"."+field, ".") }

// checkNode checks a part of a file against the type of its values. Each mistake names the line and
// the field, and the allowed values.
func checkNode(n *yaml.Node, t reflect.Type, path string) (errs []error) {
	wrong := func(format string, args ...any) {
		where := fmt.Sprintf("line %d: ", n.Line)
		if path != "" {
			where += path + ": "
		}
		errs = append(errs, fmt.Errorf(where+format, args...))
	}
	switch {
	case n.Kind == yaml.AliasNode:
		return checkNode(n.Alias, t, path)
	case t.Kind() == reflect.Pointer:
		return checkNode(n, t.Elem(), path)
	case isNull(n):
		return nil // as if it were omitted
	case isMapping(t):
		if n.Kind != yaml.MappingNode {
			wrong("%s is wanted", describe(t))
			return errs
		}
		names, types := fieldsOf(t)
		for i := 0; i+1 < len(n.Content); i += 2 {
			key, value := n.Content[i], n.Content[i+1]
			if key.Value == mergeKey {
				merged := []*yaml.Node{value}
				if value.Kind == yaml.SequenceNode {
					merged = value.Content
				}
				for _, m := range merged {
					errs = append(errs, checkNode(m, t, path)...)
				}
				continue
			}
			field, known := types[key.Value]
			if !known {
				errs = append(errs, fmt.Errorf("line %d: %s: no such field: %s possible", key.Line, join(path, key.Value),
					strings.Join(names, ", ")+are(len(names))))
				continue
			}
			errs = append(errs, checkNode(value, field, join(path, key.Value))...)
		}
	case t.Kind() == reflect.Slice:
		if n.Kind != yaml.SequenceNode {
			wrong("%s is wanted", describe(t))
			return errs
		}
		for i, item := range n.Content {
			errs = append(errs, checkItem(item, t.Elem(), fmt.Sprintf("%s[%d]", path, i))...)
		}
	case t.Kind() == reflect.Map:
		if n.Kind != yaml.MappingNode {
			wrong("%s is wanted", describe(t))
			return errs
		}
		for i := 0; i+1 < len(n.Content); i += 2 {
			errs = append(errs, checkItem(n.Content[i+1], t.Elem(), join(path, n.Content[i].Value))...)
		}
	case n.Kind != yaml.ScalarNode:
		wrong("%s is wanted", describe(t))
	default:
		// The decoder would truncate 1.5 to 1.
		cut := t.Kind() != reflect.Float64 && t.Kind() != reflect.String && n.ShortTag() == "!!float"
		if err := n.Decode(reflect.New(t).Interface()); err != nil || cut {
			wrong("%q is not %s", n.Value, describe(t))
		}
	}
	return errs
}

// checkItem is checkNode for an item of a list or of a mapping without fields, which has no
// default: the decoder would drop a null, or take it for a zero.
func checkItem(n *yaml.Node, t reflect.Type, path string) []error {
	if isNull(n) {
		return []error{fmt.Errorf("line %d: %s: it is null: remove it, or give %s", n.Line, path, describe(t))}
	}
	return checkNode(n, t, path)
}

// isNull reports whether a value is null, like an empty one.
func isNull(n *yaml.Node) bool {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	return n.ShortTag() == "!!null"
}

func are(n int) string {
	if n == 1 {
		return " is"
	}
	return " are"
}

// describe describes the values of a type in words.
func describe(t reflect.Type) string {
	switch t {
	case reflect.TypeFor[time.Duration]():
		return "a time such as 20ms, 5s or 1m"
	case reflect.TypeFor[netip.Addr]():
		return "an IP address such as 10.0.0.1"
	case reflect.TypeFor[netip.AddrPort]():
		return "an IP address with a port such as 10.0.0.1:7700"
	}
	switch t.Kind() {
	case reflect.Pointer:
		return describe(t.Elem())
	case reflect.Struct:
		names, _ := fieldsOf(t)
		return "a mapping with fields (" + strings.Join(names, ", ") + ")"
	case reflect.Slice:
		return "a list, each item " + describe(t.Elem())
	case reflect.Map:
		return "a mapping, each value " + describe(t.Elem())
	case reflect.Bool:
		return "true or false"
	case reflect.Uint16:
		return "an integer from 0 to 65535"
	case reflect.Uint32, reflect.Uint64:
		return "an integer from 0 on"
	case reflect.Int:
		return "an integer"
	case reflect.Float64:
		return "a number"
	default:
		return "a text"
	}
}

// located adds to each mistake the line of the field at its beginning, if the file has it.
func located(err error, file *yaml.Node) error {
	if err == nil {
		return nil
	}
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return atLine(err, file)
	}
	var errs []error
	for _, e := range joined.Unwrap() {
		errs = append(errs, located(e, file))
	}
	return errors.Join(errs...)
}

func atLine(err error, file *yaml.Node) error {
	field, _, _ := strings.Cut(err.Error(), ": ")
	path := steps(field)
	if n := lookup(file, path); n != nil && len(path) > 0 {
		return fmt.Errorf("line %d: %w", n.Line, err)
	}
	return err
}
