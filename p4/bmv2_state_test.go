// SPDX-License-Identifier: Apache-2.0

package p4

// frame is a frame in the pipeline of a switch.
type frame struct {
	in      *simpleSwitch
	fields  []num    // of all headers
	valid   []bool   // by header
	rest    [][]byte // by header: its field that has any length
	payload []byte   // rest after the parser
	limit   int      // of the length, negative for none
	again   int      // the field list with which the frame is resubmitted, or 0
	data    []num    // of the entry whose action runs
}

// place is the index of a field among those of all headers; that of a header's validity is
// negative.
type place int

func validity(header int) place { return place(^header) }

func (f *frame) get(p place) num {
	if p < 0 {
		return truth(f.valid[^p])
	}
	return f.fields[p]
}

// set writes a field, truncated to its width.
func (f *frame) set(p place, v num, width int) { f.fields[p] = v.truncated(width) }

// become makes f a copy of a frame.
func (f *frame) become(o *frame) {
	f.in, f.payload, f.limit, f.again, f.data = o.in, o.payload, o.limit, o.again, o.data
	f.fields = append(f.fields[:0], o.fields...)
	f.valid = append(f.valid[:0], o.valid...)
	f.rest = append(f.rest[:0], o.rest...)
}

// bitReader takes bits from the front of a frame.
type bitReader struct {
	data []byte
	at   int // bit
}

func (r *bitReader) left() int { return 8*len(r.data) - r.at }

// take reads up to 128 bits. Headers are whole bytes, but fields need not be.
func (r *bitReader) take(width int) (v num) {
	for width > 0 {
		here := 8 - r.at%8 // bits of this byte
		n := min(here, width)
		c := r.data[r.at/8] >> (here - n) & (1<<n - 1)
		v = num{v.hi<<n | int64(v.lo>>(64-n)), v.lo<<n | uint64(c)}
		r.at += n
		width -= n
	}
	return v
}

// bitWriter collects consecutive fields.
type bitWriter struct {
	data []byte
	free int // bits of the last byte
}

// put appends the low bits of a number.
func (w *bitWriter) put(v num, width int) {
	for width > 0 {
		if w.free == 0 {
			w.data, w.free = append(w.data, 0), 8
		}
		n := min(w.free, width)
		c := byte(v.shr(uint64(width-n)).lo) & (1<<n - 1)
		w.data[len(w.data)-1] |= c << (w.free - n)
		w.free -= n
		width -= n
	}
}

func (w *bitWriter) putBytes(b []byte) {
	if w.free == 0 {
		w.data = append(w.data, b...)
		return
	}
	for _, c := range b {
		w.put(num{lo: uint64(c)}, 8)
	}
}

// checksum is the Internet checksum (RFC 1071).
func checksum(b []byte) uint64 {
	var sum uint64
	for i, c := range b {
		if i%2 == 0 {
			sum += uint64(c) << 8
		} else {
			sum += uint64(c)
		}
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^sum & 0xffff
}
