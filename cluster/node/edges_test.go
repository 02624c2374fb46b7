// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/libra-ina/libra/packer"
)

// Which rows are whose depends on the hot set, so that each of several servers continues with its
// own alone.
func TestServersContinueWithTheirHotSet(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), eventLimit)
	defer cancel()
	c := newCluster(t, 1)
	shard(t, c, 2)
	startSwitch(t, c)
	if err := errors.Join(trainSharded(ctx, t, c, nil, nil).errs...); err != nil {
		t.Fatal(err)
	}
	hot, err := packer.LoadHotSet(c.Job.HotSet)
	if err != nil {
		t.Fatal(err)
	}
	buildHotSetOf(t, c, hot.Len()/2)
	for i := range c.Servers {
		_, err := RunServer(ctx, Env{Config: c, Server: i, Log: testLog(t)})
		if err == nil || !strings.Contains(err.Error(), "a different configuration: job.hot_set was ") {
			t.Errorf("server %d: %v", i, err)
		}
	}
}
