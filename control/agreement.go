// SPDX-License-Identifier: Apache-2.0

package control

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// agreement compares the configurations of a job's hosts, field by field. The server lacks some
// fields, for example because it has no training data: the first worker that joins sets these.
type agreement struct {
	mu     sync.Mutex
	values map[string]agreed
}

// agreed is a value and the host that set it.
type agreed struct{ value, whose string }

const theServer = "the server"

func newAgreement(server map[string]string) *agreement {
	a := &agreement{values: map[string]agreed{}}
	for field, value := range server {
		a.values[field] = agreed{value, theServer}
	}
	return a
}

// check compares a worker's values. The error names every field that differs, with both values. A
// refused worker sets nothing.
func (a *agreement) check(worker uint16, values map[string]string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	var differ []string
	others := false // whether another worker's value is among them
	for _, field := range slices.Sorted(maps.Keys(values)) {
		if known, ok := a.values[field]; ok && known.value != values[field] {
			differ = append(differ, fmt.Sprintf("%s: %s here, %s at %s", field, values[field], known.value, known.whose))
			others = others || known.whose != theServer
		}
	}
	if differ != nil {
		remedy := "copy one cluster file, and the same training data, to all hosts"
		if others {
			remedy += "; if the other worker was wrong, restart the server, which keeps what its first worker had"
		}
		return status.Errorf(codes.FailedPrecondition, "worker %d's configuration differs: %s; %s", worker,
			strings.Join(differ, "; "), remedy)
	}
	for field, value := range values {
		if _, ok := a.values[field]; !ok {
			a.values[field] = agreed{value, fmt.Sprintf("worker %d", worker)}
		}
	}
	return nil
}

// Agreed returns the values on which the server and the workers that have joined agree, by field.
func (s *ParameterServer) Agreed() map[string]string {
	s.agree.mu.Lock()
	defer s.agree.mu.Unlock()
	fields := make(map[string]string, len(s.agree.values))
	for field, a := range s.agree.values {
		fields[field] = a.value
	}
	return fields
}
