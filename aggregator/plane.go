// SPDX-License-Identifier: Apache-2.0

package aggregator

import (
	"cmp"
	"fmt"
	"net/netip"

	"github.com/libra-ina/libra/internal/num/fixedpoint"
	"github.com/libra-ina/libra/telemetry"
	"github.com/libra-ina/libra/wire"
)

const (
	// MaxJobs is the number of job ids: a job is 0 to MaxJobs-1.
	MaxJobs = 256

	// MaxSlots is the largest number of slots of a job: the ranks that frames can name.
	MaxSlots = wire.MaxRanks

	// PageSlots is the number of slots of a page, and the most of a job on a data plane without
	// pages, see [Plane].
	PageSlots = wire.PageRanks

	// DefaultFixedExp is the default exponent of [Fixed] arithmetic: one unit is 2^-20, and sums
	// reach 2^11.
	DefaultFixedExp = -20

	// MaxWorkers is the largest number of senders that can take part in rounds.
	MaxWorkers = 64
)

// Plane is the control plane's interface to a data plane. Its methods may be called from several
// goroutines, also while frames are processed.
//
// Errors are, or wrap, those of this package.
type Plane interface {
	// AddJob starts a job with zeroed banks and no senders.
	AddJob(JobConfig) error
	// RemoveJob ends a job, removes its senders and releases its banks, harvested or not. A [Bank]
	// of the job must not be used afterwards. A new epoch of a job is RemoveJob followed by AddJob.
	RemoveJob(job uint16) error

	// AddSender admits a sender to a job, with an empty duplicate filter. In a job
	// with [JobConfig.Workers] the sender's epoch must be the job's, or the error is
	// [ErrConfig].
	AddSender(job uint16, s SenderConfig) error
	// RemoveSender withdraws a sender's admission. Its contributions stay in the job's sums, and the
	// next bank has its mark.
	RemoveSender(job, sender uint16) error

	// Swap makes the spare bank the current one and returns the previous one, with the marks of that
	// moment. When Swap returns, no frame is still being added to the returned bank. It fails with
	// [ErrBankNotCleared] while the bank of the previous Swap has not been cleared, and with [ErrMode]
	// in a mode with rounds, whose sums go to the workers. After [ErrBusy] frames may already be added
	// to the spare bank; the next Swap returns the bank that this one was about to return.
	Swap(job uint16) (*Bank, error)
	// HasMarks reports whether the banks that Swap returns have marks.
	HasMarks() bool
	// Pages returns the largest number of pages of a job. AddJob refuses a job with more slots than
	// they have.
	Pages() int
	// Clear zeroes a bank that Swap returned and makes it the job's spare.
	// The bank must not be used afterwards.
	Clear(*Bank) error

	// Counters returns the counters that belong to no job.
	Counters() (Counters, error)
	// JobCounters returns a job's counters since AddJob.
	JobCounters(job uint16) (JobCounters, error)
	// JobTimes returns how long the drawn frames of a job took since AddJob: HOT frames that were
	// applied, or were before. It is empty if the data plane measures none.
	JobTimes(job uint16) (telemetry.Distribution, error)
	// SenderCounters returns a sender's counters since AddSender.
	SenderCounters(job, sender uint16) (SenderCounters, error)

	// Close ends all jobs and releases the plane's resources.
	Close() error
}

// Mode is what a job's aggregator does in addition to summing.
type Mode uint8

const (
	// Combine adds and acknowledges; the sums are harvested.
	Combine Mode = iota
	// FetchAdd adds, and answers a frame that has [wire.FlagWantSum] with the sums after the
	// addition.
	FetchAdd
	// Sync adds in rounds: when all [JobConfig.Workers] have contributed to a group of slots, all
	// of them get its sums. There is no harvest.
	Sync
	// Acked is Sync with one bank instead of two: the slots of a group are free for its next round
	// only when all workers have told that they have its sums. That takes a second round trip.
	Acked
)

var modeNames = [...]string{Combine: "combine", FetchAdd: "fetchadd", Sync: "sync", Acked: "acked"}

func (m Mode) String() string { return enumName("Mode", modeNames[:], uint8(m)) }

// HasRounds reports whether the workers get the sums of rounds, so that there is no harvest.
func (m Mode) HasRounds() bool { return m == Sync || m == Acked }

// Arithmetic is how a job's slots represent and add numbers.
type Arithmetic uint8

const (
	// Exact is int64 fixed point; a slot counts units of 2^[JobConfig.Exp].
	Exact Arithmetic = iota
	// LUT is float32, added by table lookup (package lut). A slot holds the bits of a finite
	// float32; a sum that is too large becomes the largest finite number.
	LUT
	// Fixed is int32. Pairs carry integers that the workers have scaled by
	// 2^-[JobConfig.Exp] or by a negotiated scale; a slot holds an int32 and
	// every addition saturates.
	Fixed
)

var arithmeticNames = [...]string{Exact: "exact", LUT: "lut", Fixed: "fixed"}

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
	ID uint16 // below [MaxJobs]

	// Epoch is the epoch of the answers to all senders, and of the harvests. The epoch of a
	// sender's own frames belongs to its admission.
	Epoch uint16

	Mode       Mode
	Arithmetic Arithmetic

	// Exp is the binary exponent of the unit of [Exact] arithmetic, from -100 to 60; 0 makes the
	// unit 1. For [Fixed] it is the unit of the workers' integers; data planes do not use it. For
	// [LUT] it must be 0. [DefaultExp] suits most jobs.
	Exp int

	// Workers is the number of senders, 1 to [MaxWorkers], that take part in rounds: in [Sync] and
	// [Acked] mode, and with [Fixed] arithmetic and a negotiated scale. Otherwise it must be 0. Such a
	// job admits this number of senders and no other after them, even if one is removed: its place in
	// the rounds is freed only when the job ends.
	Workers int

	// Slots is the number of scalar parameters, 1 to [MaxSlots], or to [PageSlots] in a mode with
	// rounds. Ranks run from 0 to Slots-1.
	Slots int

	// MaxStripes is the largest number of stripes that a frame may have.
	// 0 means [wire.DefaultStripes]; the upper limit is [wire.MaxStripes].
	MaxStripes int

	// Layouts are the stripe layouts that the job accepts. 0 means all.
	Layouts Layouts
}

// DefaultExp returns the exponent that suits most jobs of an arithmetic: -46 for [Exact],
// [DefaultFixedExp] for [Fixed], and 0 for [LUT], which has no exponent.
func DefaultExp(a Arithmetic) int {
	switch a {
	case Exact:
		return fixedpoint.DefaultExp
	case Fixed:
		return DefaultFixedExp
	}
	return 0
}

// Complete returns c with defaults filled in, or an error that names the field that is out of
// range. Data planes call it first in AddJob.
func (c JobConfig) Complete() (JobConfig, error) {
	c.MaxStripes = cmp.Or(c.MaxStripes, wire.DefaultStripes)
	if c.Layouts == 0 {
		c.Layouts = Aligned | Dense
		if c.Mode.HasRounds() {
			c.Layouts = Aligned
		}
	}
	rounds := c.Mode.HasRounds() || c.Arithmetic == Fixed
	switch {
	case c.ID >= MaxJobs:
		return c, jobError(c.ID, ErrConfig, "job ids end at %d", MaxJobs-1)
	case int(c.Mode) >= len(modeNames):
		return c, jobError(c.ID, ErrUnsupported, "%v", c.Mode)
	case int(c.Arithmetic) >= len(arithmeticNames):
		return c, jobError(c.ID, ErrUnsupported, "%v", c.Arithmetic)
	case c.Arithmetic == LUT && c.Exp != 0:
		return c, jobError(c.ID, ErrConfig, "exponent %d, but %v arithmetic has none", c.Exp, c.Arithmetic)
	case c.Mode.HasRounds() && c.Workers == 0:
		return c, jobError(c.ID, ErrConfig, "%v mode needs the number of workers", c.Mode)
	case c.Workers != 0 && !rounds:
		return c, jobError(c.ID, ErrConfig, "%d workers, but %v mode with %v arithmetic has no rounds", c.Workers, c.Mode,
			c.Arithmetic)
	case c.Workers < 0 || c.Workers > MaxWorkers:
		return c, jobError(c.ID, ErrConfig, "%d workers, at most %d can take part in rounds", c.Workers, MaxWorkers)
	case c.Mode.HasRounds() && c.Layouts != Aligned:
		return c, jobError(c.ID, ErrUnsupported, "%v mode takes lane-aligned frames only", c.Mode)
	case c.Exp < fixedpoint.MinExp || c.Exp > fixedpoint.MaxExp:
		return c, jobError(c.ID, ErrConfig, "exponent %d is not in [%d, %d]",
			c.Exp, fixedpoint.MinExp, fixedpoint.MaxExp)
	case c.Slots > MaxSlots:
		return c, jobError(c.ID, ErrTooManySlots, "%d, at most %d", c.Slots, MaxSlots)
	case c.Mode.HasRounds() && c.Slots > PageSlots:
		return c, jobError(c.ID, ErrTooManySlots, "%d, at most %d in %v mode, whose rounds are of one page", c.Slots,
			PageSlots, c.Mode)
	case c.Slots < 1:
		return c, jobError(c.ID, ErrConfig, "%d slots", c.Slots)
	case c.MaxStripes < 1 || c.MaxStripes > wire.MaxStripes:
		return c, jobError(c.ID, ErrConfig, "%d stripes a frame; it must be 1 to %d",
			c.MaxStripes, wire.MaxStripes)
	case c.Layouts&^(Aligned|Dense) != 0:
		return c, jobError(c.ID, ErrUnsupported, "layouts %#x", uint8(c.Layouts))
	}
	return c, nil
}

// Pages returns the number of pages that the job's slots take.
func (c JobConfig) Pages() int { return (c.Slots + PageSlots - 1) / PageSlots }

// Banks returns the number of banks of the job.
func (c JobConfig) Banks() int {
	if c.Mode == Acked {
		return 1
	}
	return 2
}

// CheckPages returns an error if a data plane that has pages for a job is too small for this one.
// Data planes call it in AddJob.
func (c JobConfig) CheckPages(pages int) error {
	if c.Pages() > pages {
		return jobError(c.ID, ErrTooManySlots, "%d, at most %d on this data plane: use fewer hot rows, or an aggregator in XDP",
			c.Slots, pages*PageSlots)
	}
	return nil
}

// CheckSender returns an error if a job cannot admit a sender. present means that a sender with its
// number is admitted; admitted is the number of senders that ever were. Data planes call it in
// AddSender. c must be complete.
func (c JobConfig) CheckSender(s SenderConfig, present bool, admitted int) error {
	switch {
	case !s.IP.IsValid():
		return jobError(c.ID, ErrConfig, "sender %d has no IP address", s.ID)
	case present:
		return fmt.Errorf("job %d: sender %d: %w", c.ID, s.ID, ErrSenderExists)
	case c.Workers != 0 && admitted == c.Workers:
		return jobError(c.ID, ErrTooManySenders, "sender %d: all %d workers have been admitted", s.ID, c.Workers)
	case c.Workers != 0 && s.Epoch != c.Epoch:
		return jobError(c.ID, ErrConfig, "sender %d: epoch %d, but answers to all %d workers have the job's, %d",
			s.ID, s.Epoch, c.Workers, c.Epoch)
	}
	return nil
}

// CheckSwap returns an error if a job's banks cannot be swapped. frozen is the bank of the last
// Swap, nil once it is cleared. Data planes call it in Swap.
func (c JobConfig) CheckSwap(frozen *Bank) error {
	switch {
	case c.Mode.HasRounds():
		return jobError(c.ID, ErrMode, "the sums of %v mode go to the workers", c.Mode)
	case frozen != nil:
		return fmt.Errorf("job %d: %w", c.ID, ErrBankNotCleared)
	}
	return nil
}

// CheckClear returns an error if a bank cannot be cleared. frozen is as in [JobConfig.CheckSwap].
// Data planes call it in Clear.
func (c JobConfig) CheckClear(frozen, bank *Bank) error {
	switch {
	case c.Mode.HasRounds():
		return jobError(c.ID, ErrMode, "%v mode has no banks to clear", c.Mode)
	case frozen != bank:
		return fmt.Errorf("job %d: %w", c.ID, ErrBankNotFrozen)
	}
	return nil
}

// SenderConfig describes one admission of a sender to a job. Its frames are accepted from this
// source only. Without an Ethernet header (UDP sockets) the MAC address is not compared.
type SenderConfig struct {
	ID uint16

	// Epoch belongs to this admission: frames of any other epoch are refused. A sender that is
	// admitted again restarts its sequence numbers, so the control plane gives every admission a
	// new epoch; late frames of an earlier admission are then neither added nor mistaken for
	// duplicates.
	Epoch uint16

	MAC  [6]byte
	IP   netip.Addr
	Port uint16 // UDP source port; 0 means the data plane's own
}

// Bank is a frozen bank: the sums that a job collected between two Swaps. It belongs to the caller
// of Swap until Clear.
type Bank struct {
	Job   uint16
	Epoch uint16

	// Slots holds the sum of rank r at index r, in the job's arithmetic:
	// units of 2^Exp for [Exact], an int32 for [Fixed], the bits of a float32
	// for [LUT]. [JobConfig.Float32] converts it. It is a view of the data
	// plane's memory and must not be written.
	Slots []int64

	// Touched has an entry for each block of [BlockSlots] slots in the order of their ranks, which is
	// 0 if no frame was added to a slot of the block. It is nil if that is not known, as for a job of
	// one page; then any slot may hold a sum. It is a view, as Slots is.
	Touched []uint8

	Frames uint64 // frames that were added to the bank
	Pairs  uint64 // pairs in these frames

	// Marks has one mark of each sender that was admitted at the swap, or was withdrawn since the Swap
	// before, in the order of their numbers. It is nil if the data plane does not have them. The last
	// mark of a sender that was withdrawn is in one bank only: later ones have none of its frames. Of
	// several admissions with one number it is that of the newest: the program behind an earlier one
	// has ended, and sends nothing again.
	Marks []Mark
}
