// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/libra-ina/libra/packer"
)

// 'libra config check' reports what the cluster's processes would refuse in the hot set, and what
// it could not read.
func TestConfigCheckReadsTheHotSet(t *testing.T) {
	t.Parallel()
	const cluster = `
job: {id: 3, hot_set: HOT}
switch: {address: 10.0.0.1, control: "10.0.0.1:7700", interfaces: [eth1]}
server: {address: 10.0.0.2, control: "10.0.0.2:7700", interface: eth1}
workers: [{id: 1, address: 10.0.0.3, interface: eth1}]
model: {kind: fm, factors: 3}
data: {train: train.libfm}
`
	hot := filepath.Join(t.TempDir(), "hot.libra")
	write := func(rows, dim int) {
		t.Helper()
		keys := make([]uint64, rows)
		for i := range keys {
			keys[i] = uint64(i)
		}
		set, err := packer.NewHotSet(dim, keys, nil, packer.Meta{})
		if err == nil {
			err = packer.SaveHotSet(hot, set)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	check := func(change ...string) (stdout, stderr string, code int) {
		t.Helper()
		text := strings.NewReplacer(append(change, "HOT", hot)...).Replace(cluster)
		return inProcess(t, "config", "check", writeFile(t, "cluster.yaml", text))
	}
	missing := "; job.hot_set: " + hot + " is not on this host, and was not checked\n"
	if stdout, stderr, code := check(); code != 0 || !strings.HasSuffix(stdout, missing) {
		t.Errorf("without the file: code %d: %s%s", code, stdout, stderr)
	}
	standbys := []string{"server: ", "standbys: [{address: 10.0.0.4, control: \"10.0.0.4:7700\", interfaces: [eth1], slots: 400}]\nserver: "}
	p4 := []string{"switch: {", "switch: {plane: p4, lane_aligned: true, p4: {runtime: \"10.0.0.1:9559\"}, ", ", interfaces: [eth1]}\nserver", "}\nserver"}
	for name, c := range map[string]struct {
		rows, dim int
		change    []string
		want      string // of the error; none if it fits
	}{
		"fits":                     {100, 4, nil, ""},
		"fits its slots":           {100, 4, []string{"switch: {", "switch: {slots: 400, "}, ""},
		"fits its standby":         {100, 4, standbys, ""},
		"another model":            {100, 9, nil, "job.hot_set: hot set " + hot + ": its rows have 9 scalars, those of the model 4: build it for this model"},
		"empty":                    {0, 4, nil, "job.hot_set: hot set " + hot + " is empty: build it with a larger sample, or with --hot-rows"},
		"more than the slots":      {101, 4, []string{"switch: {", "switch: {slots: 403, "}, "switch.slots: there are 403 for all jobs together, and hot set " + hot + " alone takes 404: give more, or build it with --hot-rows 100 or fewer"},
		"more than by default":     {1<<18 + 1, 4, nil, "switch.slots: there are 1048576 for all jobs together, and hot set " + hot + " alone takes 1048580"},
		"more than of its standby": {101, 4, standbys, "standbys[0].slots: there are 400 for all jobs together"},
		"fits a P4 switch":         {1 << 14, 4, p4, ""},
		"more than a P4 switch":    {1<<14 + 1, 4, p4, "job.hot_set: hot set " + hot + ": it has 16385 rows, and a P4 switch takes 16384 of 4 scalars of a job"},
	} {
		t.Run(name, func(t *testing.T) {
			write(c.rows, c.dim)
			stdout, stderr, code := check(c.change...)
			if fits := c.want == ""; fits && (code != 0 || strings.Contains(stdout, "not checked")) || !fits && (code != exitFailure || !strings.Contains(stderr, c.want)) {
				t.Errorf("code %d: %s%s", code, stdout, stderr)
			}
		})
	}
	if err := os.WriteFile(hot, []byte("no hot set"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, stderr, code := check(); code != exitFailure || !strings.Contains(stderr, "job.hot_set: "+hot+": ") {
		t.Errorf("another file: code %d: %s", code, stderr)
	}
}
