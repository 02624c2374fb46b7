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
type agreed struct {
	value, whose string
	holders      int // admissions with it, of a value that a worker set; those that have ended count, too
}

const theServer = "the server"

func newAgreement(server map[string]string) *agreement {
	a := &agreement{values: map[string]agreed{}}
	for field, value := range server {
		a.values[field] = agreed{value: value, whose: theServer}
	}
	return a
}

// checkValues compares a worker's values, and sets nothing. The error names every field that
// differs, with both values.
func (a *agreement) checkValues(worker uint16, values map[string]string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.compareLocked(worker, values)
}

// holdValues sets the values of a worker that is admitted, as far as they are new.
func (a *agreement) holdValues(worker uint16, values map[string]string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for field, value := range values {
		known, ok := a.values[field]
		if !ok {
			known = agreed{value: value, whose: fmt.Sprintf("worker %d", worker)}
		}
		known.holders++
		a.values[field] = known
	}
}

// releaseValues takes back what hold has set, if no other worker has been admitted with it.
func (a *agreement) releaseValues(values map[string]string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for field := range values {
		known := a.values[field]
		known.holders--
		a.values[field] = known
		if known.whose != theServer && known.holders == 0 {
			delete(a.values, field)
		}
	}
}

// valueOf returns the value of a field, or "".
func (a *agreement) valueOf(field string) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.values[field].value
}

// compareLocked is checkValues. The caller holds the lock.
func (a *agreement) compareLocked(worker uint16, values map[string]string) error {
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
