package simulation

import (
	"github.com/libra-ina/libra/ps"
	"github.com/libra-ina/libra/wire"
)

// fault is something wrong that a test has a life do, to see that it is found.
type fault string

const (
	appliesTwice     fault = "the server adds a frame twice"
	acknowledgesOnly fault = "the server acknowledges a frame without adding it"
	spoilsRow        fault = "a pull brings a row that the store does not hold"
	sameEpoch        fault = "all admissions have the same epoch"
	harvestsTwice    fault = "a harvest that comes again has another number"
	clearsEarly      fault = "a bank is cleared although its harvest was lost"
)

// faulty is a store that does something wrong to one frame in sixteen.
type faulty struct {
	*ps.Store
	s *sim
}

// now reports whether it is time for a fault.
func (f *faulty) now(which fault) bool {
	return f.s.options.fault == which && f.s.ledger.applied%16 == 15
}

func (f *faulty) Accumulate(rows wire.Rows) error {
	if f.now(acknowledgesOnly) {
		return nil
	}
	err := f.Store.Accumulate(rows)
	if f.now(appliesTwice) && err == nil {
		err = f.Store.Accumulate(rows)
	}
	return err
}

func (f *faulty) Read(keys []uint64, dst []float32) {
	f.Store.Read(keys, dst)
	if f.now(spoilsRow) {
		dst[len(dst)-1]++
	}
}
