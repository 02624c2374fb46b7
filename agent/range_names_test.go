// SPDX-License-Identifier: Apache-2.0

//go:build linux

package agent_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/libra-ina/libra/agent/agentclient"
	"github.com/libra-ina/libra/agent/agentproto"
)

// A job of a range has one name; others are refused, with the names that there are, or as unknown.
func TestRangeNames(t *testing.T) {
	b, _ := newRangeBed(t, time.Hour)
	const range2 = "the range hot has 2 jobs, hot/0 to hot/1"
	for name, want := range map[string]string{
		"hot/2": range2, "hot/-1": range2, "hot/00": range2, "hot/+0": range2, "hot/": range2, "hot/x": range2, "hot/0/0": range2,
		"hot/99999999999999999999": range2, "hot": "", "cold/0": "", "/0": "",
	} {
		_, err := agentclient.Dial(within(t), b.socket, agentproto.Hello{Job: name, Features: 1})
		if !errors.Is(err, agentproto.NoJob) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", name, err, want)
		}
	}
}
