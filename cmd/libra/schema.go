// SPDX-License-Identifier: Apache-2.0

package main

import "strings"

// schemaFile is the file in docs/schema that describes a command's output.
func schemaFile(path string) string {
	return strings.ReplaceAll(strings.TrimPrefix(path, "libra "), " ", "-") + ".json"
}
