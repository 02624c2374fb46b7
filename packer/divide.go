// SPDX-License-Identifier: Apache-2.0

package packer

import (
	"fmt"

	"github.com/libra-ina/libra/packer/share"
)

// places is where hot rows go. It is immutable: a batch that has begun keeps its own.
type places struct {
	shares *share.Division // nil: one job has everything
	pages  int             // of the hot set's scalars
}

// hasColdRows reports whether rows of some parts of the hot set are cold.
func (p *places) hasColdRows() bool { return p.shares != nil && p.shares.HasCold() }

// Divide changes Config.Shares, for batches that begin from now on and for keys that are prepared
// from now on; those that are prepared already are looked up again by their next batch. The rest of
// the batch in progress goes where it went. After [ErrConfig] nothing has changed.
func (p *Packer) Divide(shares *share.Division) error {
	if shares != nil && (p.hotSet == nil || !shares.Divides(p.hotSet.Fingerprint())) {
		return fmt.Errorf("%w: the shares are of another hot set", ErrConfig)
	}
	if shares != nil && shares.Len() == 1 && !shares.HasCold() { // all ranks are what they were
		shares = nil
	}
	to := &places{shares: shares, pages: 1}
	switch {
	case shares != nil:
		to.pages = shares.Pages()
	case p.hotSet != nil:
		to.pages = max(1, p.hotSet.pages())
	}
	p.current.Store(to)
	return nil
}
