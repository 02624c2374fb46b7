package packer

// Frames lends frame payloads to a [Packer] and takes them back filled. A
// transport implements it over its transmit buffers (with AF_XDP: the UDP
// payload inside a UMEM chunk), so that a gradient is copied exactly once, from
// the caller's slice into the buffer that is sent.
//
// A payload begins at the wire header. Its first wire.HeaderLen bytes belong to
// the implementation (job, sender, epoch, sequence number, flags); the packer
// never reads or writes them. The contents of a lent payload need not be
// zeroed: the packer writes every byte of the body that it hands over.
//
// The packer holds at most one payload at a time: each successful Hot is
// followed by exactly one SendHot, and each successful Cold by exactly one
// SendCold, before any other call. So no payload is ever left over, also when a
// call fails, and there is no need to give one back.
//
// Hot and Cold may block until a buffer and a place in the send window are
// free, and may drive the network meanwhile. Send* may gather frames and submit
// them later; whoever called [Packer.Pack] submits the rest when it returns.
// An error from any of the four ends Pack, which returns it wrapped.
type Frames interface {
	// Hot lends the payload of a HOT frame. It holds at least
	// wire.HotLen(Config.Stripes) bytes.
	Hot() (payload []byte, err error)

	// SendHot takes a payload back that Hot lent, cut to wire.HotLen(n) for
	// the n >= 1 stripes that were filled. The frame is dense
	// (wire.FlagDense) if the packer's Config.Layout is.
	//
	// After an error the frame does not count as handed over.
	SendHot(payload []byte) error

	// Cold lends the payload of a COLD frame. Its length decides how many
	// rows go in: wire.ColdCap(len(payload), Dim), which must be at least 1.
	Cold() (payload []byte, err error)

	// SendCold takes a payload back that Cold lent, cut to wire.ColdLen(n,
	// Dim) for the n >= 1 rows that were filled.
	//
	// After an error the frame does not count as handed over.
	SendCold(payload []byte) error
}
