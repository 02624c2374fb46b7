// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/libra-ina/libra/train"
)

// While no aggregator takes a job, the server's log says of each one why, and says it once.
func TestWhyStandbysDoNotTakeTheJob(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1)
	addStandbys(t, c, 1)
	c.Data.Synthetic.Rows = 2003
	serve(t, c, true, 1)
	_, stop := runAggregator(t, c, 0)
	c.Standbys[0].Slots = 10
	_, stopStandby := runAggregator(t, c, 1)
	defer stopStandby()
	why := map[string]int{"slots": 0, "did not answer within": 0} // the standby, the switch
	said := func(log string) (all int) {
		clear(why)
		for line := range strings.Lines(log) {
			if strings.Contains(line, "an aggregator does not take the job: the server goes on asking all of them") {
				all++
				for _, word := range []string{"slots", "did not answer within"} {
					if strings.Contains(line, word) {
						why[word]++
					}
				}
			}
		}
		return all
	}
	var log lines
	out := trainWith(t.Context(), c, hooks{step: func(_ uint16, p train.Progress, _, _ func()) {
		if p.Steps != 5 {
			return
		}
		stop()
		for end := time.Now().Add(time.Minute); said(log.String()) < 2 && time.Now().Before(end); {
			time.Sleep(time.Millisecond)
		}
	}}, log.logger())
	if err := out.err(); err != nil {
		t.Fatal(err)
	}
	if named := "of its entry in the cluster file"; !strings.Contains(log.String(), named) { // not switch.slots
		t.Errorf("the log does not say that the slots are those %s:\n%s", named, log.String())
	}
	if n := said(log.String()); n != 2 || why["slots"] != 1 || why["did not answer within"] != 1 {
		t.Errorf("%d reasons, %v:\n%s", n, why, log.String())
	}
}

// What an aggregator says while it counts a lease down is one reason.
func TestReasonsAreNewsOnce(t *testing.T) {
	said := reasons{}
	for i, c := range []struct {
		at   int
		why  string
		news bool
	}{
		{0, "job 3 exists: its lease ends in 3.212s", true},
		{1, "job 3 exists: its lease ends in 3.208s", true},
		{0, "job 3 exists: its lease ends in 2.7s", false},
		{0, "it did not answer within 1s", true},
		{1, "job 3 exists: its lease ends in 3s", false},
		{0, "job 3 exists: its lease ends in 1s", true},
	} {
		if news := said.isNews(c.at, errors.New(c.why)); news != c.news {
			t.Errorf("%d: %q of aggregator %d is news: %v", i, c.why, c.at, news)
		}
	}
}
