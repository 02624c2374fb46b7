// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/control"
	"github.com/libra-ina/libra/packer"
)

// loadHotSet reads the job's hot set and checks that it fits the model.
func loadHotSet(c *cluster.Config, dim int) (*packer.HotSet, error) {
	hot, err := packer.LoadHotSet(c.Job.HotSet)
	if err != nil {
		return nil, err
	}
	if err := fitsHotSet(c, hot, dim); err != nil {
		return nil, err
	}
	return hot, nil
}

// fitsHotSet checks that the job's hot set fits a model of rows of dim scalars, and a P4 switch.
func fitsHotSet(c *cluster.Config, hot *packer.HotSet, dim int) error {
	if hot.Dim() != dim {
		return fmt.Errorf("hot set %s: its rows have %d scalars, those of the model %d: build it for this model",
			c.Job.HotSet, hot.Dim(), dim)
	}
	if hot.Len() == 0 {
		return fmt.Errorf("hot set %s is empty: build it with a larger sample, or with --hot-rows", c.Job.HotSet)
	}
	if most := packer.MaxHotRows(dim); hot.Len() > most {
		return fmt.Errorf("hot set %s: it has %d rows, and a job takes %d of %d scalars: build it with --hot-rows %d or fewer", c.Job.HotSet, hot.Len(), most, dim, most)
	}
	// The switch would refuse it too, but only after the wait for it.
	if most := packer.PageSlots / dim; c.Switch.Plane == cluster.PlaneP4 && len(c.Job.IDs) == 0 && hot.Len() > most {
		return fmt.Errorf("hot set %s: it has %d rows, and a P4 switch takes %d of %d scalars of a job: build it with --hot-rows %d or fewer, or use an aggregator in XDP",
			c.Job.HotSet, hot.Len(), most, dim, most)
	}
	return nil
}

// LoadHotSet reads the job's hot set and checks what the cluster's processes would refuse of it at
// their start, but not the slots of switches. Errors name the field; if the file is not on this
// host, they wrap [fs.ErrNotExist].
func LoadHotSet(c *cluster.Config) (*packer.HotSet, error) {
	hot, err := packer.LoadHotSet(c.Job.HotSet)
	if err != nil {
		return nil, fmt.Errorf("job.hot_set: %w", err)
	}
	dim := hot.Dim() // of a job without a parameter server
	if !c.Serverless() {
		model, err := Model(c.Model)
		if err != nil {
			return nil, err
		}
		dim = model.Dim()
	}
	if err := fitsHotSet(c, hot, dim); err != nil {
		return nil, fmt.Errorf("job.hot_set: %w", err)
	}
	return hot, nil
}

// CheckHotSet is [LoadHotSet], and also checks that switch and standbys have slots for all of the
// hot set; with a plan, which divides it by the slots of the switches, it does not compare them.
func CheckHotSet(c *cluster.Config) error {
	hot, err := LoadHotSet(c)
	if err != nil || c.Job.Plan != "" {
		return err
	}
	var errs []error
	for i, s := range c.Aggregators() {
		field := "switch"
		if i > 0 {
			field = fmt.Sprintf("standbys[%d]", i-1)
		}
		if most := cmp.Or(s.Slots, control.DefaultSlots); hot.Slots() > most {
			errs = append(errs, fmt.Errorf("%s.slots: there are %d for all jobs together, and hot set %s alone takes %d: give more, or build it with --hot-rows %d or fewer",
				field, most, c.Job.HotSet, hot.Slots(), most/hot.Dim()))
		}
	}
	return errors.Join(errs...)
}
