package aggregator

import (
	"net/netip"

	"github.com/libra-ina/libra/internal/fixedpoint"
	"github.com/libra-ina/libra/wire"
)

const (
	// MaxJobs is the number of job ids: a job is 0 to MaxJobs-1.
	MaxJobs = 256

	// MaxSlots is the largest number of slots of a job: what a dense frame's
	// 16-bit rank can name.
	MaxSlots = 1 << 16
)

// Plane is what the control plane needs of a data plane. Its methods may be
// called from several goroutines, also while frames are processed.
//
// Errors are, or wrap, those of this package.
type Plane interface {
	// AddJob starts a job with zeroed banks and no senders.
	AddJob(JobConfig) error
	// RemoveJob ends a job, forgets its senders and releases its banks,
	// harvested or not. A [Bank] of the job must not be used afterwards.
	// A new epoch of a job is RemoveJob followed by AddJob.
	RemoveJob(job uint16) error

	// AddSender admits a sender to a job, with an empty duplicate filter.
	AddSender(job uint16, s SenderConfig) error
	// RemoveSender withdraws a sender's admission. What it contributed stays
	// in the job's sums.
	RemoveSender(job, sender uint16) error

	// Swap makes the spare bank the current one and returns the bank that
	// was current. When Swap returns, no frame is being added to the
	// returned bank any more. It fails with [ErrBankNotCleared] while the
	// bank of the previous Swap has not been cleared.
	Swap(job uint16) (*Bank, error)
	// Clear zeroes a bank that Swap returned and makes it the job's spare.
	// The bank must not be used afterwards.
	Clear(*Bank) error

	// Counters returns what concerns no job.
	Counters() (Counters, error)
	// JobCounters returns a job's counters since AddJob.
	JobCounters(job uint16) (JobCounters, error)
	// SenderCounters returns a sender's counters since AddSender.
	SenderCounters(job, sender uint16) (SenderCounters, error)

	// Close ends all jobs and releases everything that the plane holds.
	Close() error
}

// Mode says what a job's aggregator does beside adding.
type Mode uint8

const (
	// Combine adds and acknowledges; the sums leave by harvest.
	Combine Mode = iota
	// FetchAdd adds, and answers a frame that has [wire.FlagWantSum] with the
	// sums after the addition.
	FetchAdd
)

var modeNames = [...]string{Combine: "combine", FetchAdd: "fetchadd"}

func (m Mode) String() string { return enumName("Mode", modeNames[:], uint8(m)) }

// Arithmetic says how a job's slots represent and add numbers.
type Arithmetic uint8

const (
	// Exact is int64 fixed point; a slot counts units of 2^[JobConfig.Exp].
	Exact Arithmetic = iota
)

var arithmeticNames = [...]string{Exact: "exact"}

func (a Arithmetic) String() string { return enumName("Arithmetic", arithmeticNames[:], uint8(a)) }

// Layouts is a set of stripe layouts.
type Layouts uint8

const (
	// Aligned is the layout without [wire.FlagDense]: the pair in lane j has
	// rank slot × [wire.Lanes] + j.
	Aligned Layouts = 1 << iota
	// Dense is the layout with [wire.FlagDense]: the pair names its rank.
	Dense
)

// JobConfig describes a job.
type JobConfig struct {
	ID    uint16 // below [MaxJobs]
	Epoch uint16 // frames of any other epoch are refused

	Mode       Mode
	Arithmetic Arithmetic

	// Exp is the binary exponent of the unit of [Exact] arithmetic, from
	// fixedpoint.MinExp to fixedpoint.MaxExp. 0 means fixedpoint.DefaultExp.
	Exp int

	// Slots is the number of scalar parameters, 1 to [MaxSlots]. Ranks run
	// from 0 to Slots-1.
	Slots int

	// MaxStripes is the largest number of stripes that a frame may have.
	// 0 means [wire.MaxStripes], which is also the upper limit.
	MaxStripes int

	// Layouts are the stripe layouts that the job takes. 0 means all.
	Layouts Layouts
}

// Complete returns c with defaults filled in, or an error that says which
// field is out of range. Data planes call it first in AddJob.
func (c JobConfig) Complete() (JobConfig, error) {
	if c.Exp == 0 {
		c.Exp = fixedpoint.DefaultExp
	}
	if c.MaxStripes == 0 {
		c.MaxStripes = wire.MaxStripes
	}
	if c.Layouts == 0 {
		c.Layouts = Aligned | Dense
	}
	switch {
	case c.ID >= MaxJobs:
		return c, jobError(c.ID, ErrConfig, "job ids end at %d", MaxJobs-1)
	case int(c.Mode) >= len(modeNames):
		return c, jobError(c.ID, ErrUnsupported, "%v", c.Mode)
	case int(c.Arithmetic) >= len(arithmeticNames):
		return c, jobError(c.ID, ErrUnsupported, "%v", c.Arithmetic)
	case c.Exp < fixedpoint.MinExp || c.Exp > fixedpoint.MaxExp:
		return c, jobError(c.ID, ErrConfig, "exponent %d is not in [%d, %d]",
			c.Exp, fixedpoint.MinExp, fixedpoint.MaxExp)
	case c.Slots > MaxSlots:
		return c, jobError(c.ID, ErrTooManySlots, "%d, at most %d", c.Slots, MaxSlots)
	case c.Slots < 1:
		return c, jobError(c.ID, ErrConfig, "%d slots", c.Slots)
	case c.MaxStripes < 1 || c.MaxStripes > wire.MaxStripes:
		return c, jobError(c.ID, ErrConfig, "%d stripes a frame, 1 to %d are possible",
			c.MaxStripes, wire.MaxStripes)
	case c.Layouts&^(Aligned|Dense) != 0:
		return c, jobError(c.ID, ErrUnsupported, "layouts %#x", uint8(c.Layouts))
	}
	return c, nil
}

// SenderConfig describes a sender that is admitted to a job. Its frames are
// accepted from this source address only. Without an Ethernet header (UDP
// sockets) the IP address alone identifies the sender.
type SenderConfig struct {
	ID  uint16
	MAC [6]byte
	IP  netip.Addr
}

// Bank is a frozen bank: the sums that a job collected between two Swaps. It
// belongs to the caller of Swap until Clear.
type Bank struct {
	Job   uint16
	Epoch uint16

	// Slots holds the sum of rank r at index r, in the job's arithmetic
	// ([Exact]: units of 2^Exp). It is a view of the data plane's memory and
	// must not be written.
	Slots []int64

	Frames uint64 // frames that were added into the bank
	Pairs  uint64 // pairs in these frames
}

// Counters count frames that concern no job.
type Counters struct {
	Passed    uint64 // not addressed to the aggregator, left to the kernel
	Forwarded uint64 // Libra frames between hosts, sent on by destination MAC

	// Dropped without an answer, because the frame cannot be trusted or an
	// answer to it could loop.
	Truncated   uint64 // ends before the headers that it announces
	BadChecksum uint64 // IPv4 or UDP checksum wrong, or no UDP checksum
	Short       uint64 // UDP payload shorter than the header
	Unexpected  uint64 // ACK or ERROR addressed to the aggregator

	// Refused counts ERROR replies by code: wrong version, type, unknown job.
	Refused Refusals

	// Unanswered counts replies that did not fit the receive buffer (XDP).
	Unanswered uint64
}

// JobCounters count the frames of a job.
type JobCounters struct {
	Applied    uint64 // frames added into a bank
	Pairs      uint64 // pairs in these frames
	Duplicates uint64 // frames acknowledged again without being added
	Refused    Refusals

	// Raced counts frames that were dropped because another CPU was adding
	// a frame of the same sender and the same place in the duplicate filter.
	// The sender repeats them. Always 0 in the model.
	Raced uint64

	// UndoOverflows counts frames whose refusal, when their additions were
	// undone, took a sum out of range: another CPU had accepted a frame on
	// top of them. Such a sum is wrong. Always 0 in the model.
	UndoOverflows uint64
}

// SenderCounters count the frames of one sender of a job.
type SenderCounters struct {
	Applied    uint64 // frames added into a bank
	Pairs      uint64 // pairs in these frames
	Duplicates uint64 // frames acknowledged again without being added
	Refused    uint64 // ERROR replies to the admitted sender
}

// Refusals counts ERROR replies, indexed by [wire.Code].
type Refusals [wire.CodeType + 1]uint64

// Total returns the sum over all codes.
func (r *Refusals) Total() uint64 {
	var n uint64
	for _, c := range r {
		n += c
	}
	return n
}
