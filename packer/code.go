// SPDX-License-Identifier: Apache-2.0

package packer

import (
	"fmt"

	"github.com/libra-ina/libra/codec"
	"github.com/libra-ina/libra/wire"
)

// coder codes cold rows. How many fit into a frame is known only when they are coded, so codes are
// made in a buffer, group by group, until the frame is full.
type coder struct {
	codec.Codec
	codes  []byte                             // of the rows of the frame in progress
	begins [wire.MaxCoded/codec.Group + 1]int // of its groups in codes
	group  [codec.Group]float32               // values of the last one
}

// newCoder returns nil if rows are not to be coded.
func newCoder(config codec.Config, dim int) (*coder, error) {
	if config == (codec.Config{}) {
		return nil, nil
	}
	c, err := codec.New(config)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w: Codec: %w", ErrConfig, err)
	case config.Paper:
		return nil, fmt.Errorf("%w: Codec: frames do not have the paper's codes: leave Paper out", ErrConfig)
	case dim > wire.MaxCoded:
		return nil, fmt.Errorf("%w: Codec: rows of %d gradients, a coded frame has at most %d", ErrConfig, dim, wire.MaxCoded)
	}
	return &coder{Codec: c, codes: make([]byte, 0, wire.MaxPayload+2*codec.MaxLen(codec.Group))}, nil
}

// CodeCold codes and decodes the gradients of cold rows in place: these are the values that a
// server gets from workers whose packers have the codec. hot may be nil.
func CodeCold(c codec.Codec, hot *HotSet, keys []uint64, grads []float32) {
	if len(keys) == 0 {
		return
	}
	dim := len(grads) / len(keys)
	var codes []byte
	for i, key := range keys {
		if hot != nil {
			if _, ok := hot.Rank(key); ok {
				continue
			}
		}
		row := grads[i*dim : (i+1)*dim]
		codes = c.Append(codes[:0], row)
		if err := c.Decode(row, codes); err != nil {
			panic(err) // its own codes
		}
	}
}

// isCoded reports whether the next cold frame has codes instead of floats. With Config.Codec all
// have, except those with rows of the hot set.
func (p *Packer) isCoded() bool { return p.coder != nil && p.sent.ColdRows >= p.plain }

// separatePlain puts the rows of the hot set before the other cold rows of their server, which is
// the first: only those others are coded.
func (p *Packer) separatePlain(s *scratch, keys []uint64) {
	end := s.nCold
	if p.split > 1 {
		end = s.ends[0]
	}
	cold := s.cold[:end]
	s.dealt = grown(s.dealt, len(s.cold))
	coded := s.dealt[:0]
	for _, at := range cold {
		hot := false
		if p.hotSet != nil {
			_, hot = p.hotSet.Rank(keys[at])
		}
		if hot {
			cold[s.plain] = at // not beyond where it was
			s.plain++
		} else {
			coded = append(coded, at)
		}
	}
	copy(cold[s.plain:], coded)
}

// fillCoded is fillCold with codes.
func (p *Packer) fillCoded(payload []byte) []byte {
	t, first := p.Next(), p.sent.ColdRows
	rows := p.cold[first:p.endOf(p.server)]
	head, keyed := wire.CodedLen(t, 0, 0), wire.CodedLen(t, 1, 0)
	n := p.coder.codeRows(rows[:min(len(rows), wire.MaxCoded/p.dim)], p.grads, p.dim, keyed-head, len(payload)-head)
	rows = rows[:n]
	var numbering uint32
	if p.rows != nil {
		numbering = p.rows.Numberings[p.server]
	}
	payload = payload[:wire.CodedLen(t, n, len(p.coder.codes))]
	body, codes := wire.PutCoded(payload, t, n, p.dim, numbering)
	if p.rows != nil {
		body.SetNumbers(p.rows.Numbers[first:][:n])
	} else {
		body.GatherKeys(p.keys, rows)
	}
	copy(codes, p.coder.codes)
	p.sent.CodedValues += n * p.dim
	p.sent.CodedBytes += len(codes)
	p.coldSent(n)
	return payload
}

// codeRows makes the codes of as many rows as have room with them, each with keyed bytes besides,
// and returns their number. There is room for the first.
func (c *coder) codeRows(rows []uint32, grads []float32, dim, keyed, room int) int {
	c.codes = c.codes[:0]
	total := len(rows) * dim
	for from := 0; from < total; from += codec.Group {
		begin, to := len(c.codes), min(from+codec.Group, total)
		c.begins[from/codec.Group] = begin
		c.gatherGroup(rows, grads, dim, from, to)
		c.codes = c.Append(c.codes, c.group[:to-from])
		whole := to / dim
		if whole*keyed+len(c.codes) <= room {
			continue
		}
		// Rows up to this group have room, as the last one has been looked at.
		fits, beyond := from/dim, whole+1
		for beyond-fits > 1 {
			n := (fits + beyond) / 2
			c.codes = c.Append(c.codes[:begin], c.group[:n*dim-from])
			if n*keyed+len(c.codes) <= room {
				fits = n
			} else {
				beyond = n
			}
		}
		c.cutCodes(rows, grads, dim, fits)
		return fits
	}
	return len(rows)
}

// cutCodes makes the codes end with those of a number of rows.
func (c *coder) cutCodes(rows []uint32, grads []float32, dim, n int) {
	to := n * dim
	from := to - to%codec.Group
	c.codes = c.codes[:c.begins[from/codec.Group]]
	if from < to {
		c.gatherGroup(rows, grads, dim, from, to)
		c.codes = c.Append(c.codes, c.group[:to-from])
	}
}

// gatherGroup copies a range of the rows' gradients, which is at most a group.
func (c *coder) gatherGroup(rows []uint32, grads []float32, dim, from, to int) {
	if dim == 1 {
		for i, at := range rows[from:to] {
			c.group[i%codec.Group] = grads[at]
		}
		return
	}
	group := c.group[:to-from]
	for row, column := from/dim, from%dim; len(group) > 0; row, column = row+1, 0 {
		at := int(rows[row]) * dim
		group = group[copy(group, grads[at+column:at+dim]):]
	}
}
